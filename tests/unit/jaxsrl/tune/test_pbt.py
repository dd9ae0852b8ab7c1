"""Rules of populations: who copies whom, ranges that values stay in, and the quadratic of the paper."""

import numpy as np
import pytest

from envpool_bridge.errors import UserError
from jaxsrl.tune.pbt import PBTConfig, choose, draw, first_values
from jaxsrl.tune.space import parse_space

SPACE = parse_space(
    {
        "agent.learning_rate": {"low": 1e-5, "high": 1e-1, "log": True},
        "agent.num_epochs": {"low": 1, "high": 8},
        "agent.optimizer.name": {"choices": ["adam", "rmsprop", "sgd"]},
    },
    "test",
)
SCORES = [3.0, 9.0, float("nan"), 5.0, 8.0, 1.0, 7.0, 6.0]  # best: 1 and 4; worst: 5 and 2


def values():
    return first_values(SPACE, len(SCORES), np.random.default_rng(1))


def test_the_worst_copy_the_best_and_others_stay():
    own = values()
    for seed in range(20):
        choices = choose(PBTConfig(share=0.25), SPACE, SCORES, own, np.random.default_rng(seed))
        assert [number for number, choice in enumerate(choices) if choice.source != number] == [2, 5]
        assert {choices[2].source, choices[5].source} <= {1, 4}
        assert all(choices[number].values == own[number] for number in (0, 1, 3, 4, 6, 7))
        assert all(1e-5 <= choice.values["agent.learning_rate"] <= 0.1 for choice in choices)


def test_copied_numbers_are_multiplied_by_a_factor():
    own = values()
    config = PBTConfig(share=0.25, resample=0.0)
    choices = choose(config, SPACE, SCORES, own, np.random.default_rng(0))
    for number in (2, 5):
        source = own[choices[number].source]
        ratio = choices[number].values["agent.learning_rate"] / source["agent.learning_rate"]
        at_the_end = choices[number].values["agent.learning_rate"] in (1e-5, 1e-1)
        assert at_the_end or min(abs(ratio - 0.8), abs(ratio - 1.2)) < 1e-9
        assert isinstance(choices[number].values["agent.num_epochs"], int)


def test_sample_factory_copies_over_a_gap_and_keeps_the_best():
    scores = [10.0, 9.5, 9.4, 9.3]
    own = first_values(SPACE, 4, np.random.default_rng(0))
    config = PBTConfig("sample_factory", mutation_rate=1.0)
    choices = choose(config, SPACE, scores, own, np.random.default_rng(0))
    assert [choice.source for choice in choices] == [0, 1, 2, 3]
    assert choices[0].values == own[0]
    assert all(choices[number].values != own[number] for number in (1, 2, 3))
    far = choose(config, SPACE, [10.0, 9.5, 9.4, 5.0], own, np.random.default_rng(0))
    assert [choice.source for choice in far] == [0, 1, 2, 0]


def test_draws_cover_their_ranges():
    random = np.random.default_rng(0)
    rates = np.log10([draw(SPACE["agent.learning_rate"], random) for _ in range(2000)])
    assert -5.0 <= rates.min() < -4.9 < -1.1 < rates.max() <= -1.0
    assert abs(rates.mean() + 3.0) < 0.1
    assert {draw(SPACE["agent.num_epochs"], random) for _ in range(200)} == set(range(1, 9))
    assert {draw(SPACE["agent.optimizer.name"], random) for _ in range(50)} == {"adam", "rmsprop", "sgd"}


def test_draws_of_stepped_ranges_are_uniform():
    random = np.random.default_rng(0)
    entries = {
        "ends": ({"low": 0, "high": 2}, [0, 1, 2]),
        "coarse": ({"low": 1, "high": 8, "step": 3}, [1, 4, 7]),
        "decimal": ({"low": 0.1, "high": 0.3, "step": 0.1}, [0.1, 0.2, 0.3]),
    }
    for name, (data, expected) in entries.items():
        (entry,) = parse_space({"agent.x": data}, "test").values()
        found, counts = np.unique([draw(entry, random) for _ in range(3000)], return_counts=True)
        np.testing.assert_allclose(found, expected, err_msg=name)
        assert np.abs(counts - 1000).max() < 150, name


@pytest.mark.parametrize(
    ("data", "last"), [({"low": 1, "high": 9, "step": 3}, 7), ({"low": 0.5, "high": 1.4, "step": 0.25}, 1.25)]
)
def test_changed_values_stay_on_the_steps_of_a_range(data, last):
    space = parse_space({"agent.x": data}, "test")
    config = PBTConfig(share=0.5, resample=0.0, factors=(5.0, 5.0))
    changed = choose(config, space, [1.0, 0.0], [{"agent.x": last}] * 2, np.random.default_rng(0))[1]
    assert changed.values == {"agent.x": last}


@pytest.mark.parametrize(
    ("data", "value", "factor", "expected"),
    [
        ({"low": 1, "high": 8}, 2, 1.2, 3),  # 2.4 would be rounded to 2
        ({"low": 1, "high": 8}, 2, 0.8, 1),
        ({"low": 1, "high": 8, "log": True}, 2, 1.2, 3),
        ({"low": 1, "high": 8}, 1, 0.8, 1),
        ({"low": 1, "high": 8}, 8, 1.2, 8),
        ({"low": 10, "high": 100}, 50, 1.2, 60),
        ({"low": 0, "high": 4}, 0, 1.2, 1),
        ({"low": -8, "high": 8}, -2, 1.2, -3),
        ({"low": 0.0, "high": 1.0, "step": 0.25}, 0.25, 1.2, 0.5),
        ({"low": 1, "high": 8}, 2, 1.0, 2),
    ],
)
def test_changed_values_move_at_least_one_step(data, value, factor, expected):
    space = parse_space({"agent.x": data}, "test")
    config = PBTConfig(share=0.5, resample=0.0, factors=(factor, factor))
    changed = choose(config, space, [1.0, 0.0], [{"agent.x": value}] * 2, np.random.default_rng(0))[1]
    assert changed.values == {"agent.x": expected}


def test_the_quadratic_of_the_paper_needs_copies():
    """Figure 2 of Jaderberg et al.: two members ascend 1.2 - h0 x0^2 - h1 x1^2 with h (1, 0) and (0, 1)."""
    space = parse_space({f"h{axis}": {"low": 1e-3, "high": 1.0} for axis in (0, 1)}, "test")
    reached = {}
    for rule in ("truncation", "none"):
        random = np.random.default_rng(0)
        points, own = np.full((2, 2), 0.9), [{"h0": 1.0, "h1": 1e-3}, {"h0": 1e-3, "h1": 1.0}]
        for _ in range(40):
            for _ in range(5):
                points -= 0.02 * 2.0 * points * np.array([[each["h0"], each["h1"]] for each in own])
            scores = 1.2 - np.square(points).sum(1)
            choices = choose(PBTConfig(rule, share=0.5), space, scores, own, random)
            points, own = np.array([points[choice.source] for choice in choices]), [choice.values for choice in choices]
        reached[rule] = scores.max()
    assert reached["truncation"] > 1.15
    assert reached["none"] < 0.45


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "best"}, "rule must be"),
        ({"share": 0.6}, "share"),
        ({"resample": 2.0}, "probability"),
        ({"factors": (0, 1)}, "factors"),
    ],
)
def test_settings_out_of_range_are_rejected(settings, message):
    with pytest.raises(UserError, match=message):
        PBTConfig(**settings)
