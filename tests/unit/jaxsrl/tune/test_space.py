"""Search spaces and settings of sweeps."""

import dataclasses

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.tune.draw import position
from jaxsrl.tune.space import Choices, Range, parse_space, read_space
from jaxsrl.tune.study import Sweep, read_sweep, save_sweep, trial_options

TEXT = """
agent.learning_rate = {low = 1e-4, high = 1e-2, log = true}
agent.num_epochs = {low = 1, high = 8}
pool.num-workers = {choices = [1, 2]}
"""
SPACE = {
    "agent.learning_rate": Range(1e-4, 1e-2, log=True),
    "agent.num_epochs": Range(1, 8),
    "run.pool.num_workers": Choices((1, 2)),
}


def test_space_file_names_options_as_flags_do(tmp_path):
    (tmp_path / "space.toml").write_text(TEXT)
    space = read_space(tmp_path / "space.toml")
    assert space == SPACE
    assert [space[name].is_integer for name in ("agent.learning_rate", "agent.num_epochs")] == [False, True]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"low": 1, "high": 1}, "low < high"),
        ({"low": 0.0, "high": 1.0, "log": True}, "0 < low"),
        ({"low": 1}, "must be one of"),
        ({"low": 1, "high": 2, "choices": [1]}, "must be one of"),
        ({"choices": []}, "must be one of"),
        ({"low": "a", "high": 2}, "expected a number"),
        ({"low": 1, "high": 4, "step": 0}, "positive step"),
        ({"low": 1, "high": 4, "step": 1.5}, "expected an integer as the step of a range of integers, got 1.5"),
    ],
)
def test_space_rejects_bad_entry(entry, message):
    with pytest.raises(UserError, match=message):
        parse_space({"agent": {"learning_rate": entry}}, "space.toml")


def test_space_rejects_value_without_range():
    with pytest.raises(UserError, match="seed must be one of"):
        parse_space({"seed": 3}, "space.toml")


def test_unknown_option_of_space_is_rejected_with_nearest():
    sweep = Sweep("experiments/ppo_cartpole.py", {})
    with pytest.raises(UserError, match=r"agent.learning_rat: did you mean agent.learning_rate\?"):
        sweep.make_experiment({"agent.learning_rat": 1.0})
    experiment = sweep.make_experiment({"agent.learning_rate": 0.5, "run.pool.num_workers": 3})
    assert (experiment.agent.learning_rate, experiment.run.pool.num_workers) == (0.5, 3)


def test_stored_choice_is_index_of_value():
    assert trial_options(SPACE, {"agent.num_epochs": 3, "run.pool.num_workers": 1}) == {
        "agent.num_epochs": 3,
        "run.pool.num_workers": 2,
    }


def test_directory_of_another_sweep_is_rejected(tmp_path):
    sweep = Sweep("x.py", {"agent.num_epochs": {"low": 1, "high": 8}}, ("--run.seed", "1"))
    save_sweep(tmp_path / "s", sweep)
    save_sweep(tmp_path / "s", sweep)
    assert read_sweep(tmp_path / "s") == sweep
    with pytest.raises(UserError, match="other settings"):
        save_sweep(tmp_path / "s", dataclasses.replace(sweep, seed=5))
    with pytest.raises(UserError, match="holds no sweep"):
        read_sweep(tmp_path)


def test_position_is_height_on_axis():
    assert position(Range(1e-4, 1e-2, log=True), 1e-3) == pytest.approx(0.5)
    assert position(Range(1, 5), 4) == 0.75
    assert position(Choices(("a", "b", "c")), "c") == 1.0
