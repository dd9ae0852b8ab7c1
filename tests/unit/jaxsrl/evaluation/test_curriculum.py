"""The stage that evaluations decide, against values worked out by hand."""

import math

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.config.curriculum import CurriculumConfig
from jaxsrl.evaluation.curriculum import stage_at
from jaxsrl.metrics.evaluations import Evaluation

INTERVAL = 100


def evaluations(*returns):
    """Returns evaluations of updates 1, 2, ..., each of 100 env steps."""
    return [
        Evaluation(n, n * INTERVAL, n * INTERVAL, "greedy", value, 0.0, value, value, 1.0, 1, 0, 0.0)
        for n, value in enumerate(returns, 1)
    ]


def stages(config, *returns, first=0):
    """Returns the stages after updates 1, 2, ... up to the one that follows the last evaluation."""
    done = evaluations(*returns)
    return [stage_at(config, first, done, update) for update in range(1, len(returns) + 2)]


@pytest.mark.parametrize(
    ("config", "returns", "expected"),
    [
        (CurriculumConfig(returns=(1.0, 2.0)), (0.5, 1.0, 1.5, 2.0, 9.0), [0, 0, 1, 1, 2, 2]),
        # A low evaluation begins the count again, and so does a new stage.
        (CurriculumConfig(returns=(1.0, 1.0), evaluations=2), (1, 0, 1, 1, 1, 1), [0, 0, 0, 0, 1, 1, 2]),
        (CurriculumConfig(returns=(math.inf,), evaluations=3, spread=0.5), (0, 2, 2.4, 2.5), [0, 0, 0, 0, 1]),
        # The first stage begins at 0 env steps, later ones at their first evaluation.
        (CurriculumConfig(returns=(9.0, 9.0), max_env_steps=200), (0, 0, 0, 0, 0), [0, 0, 1, 1, 1, 2]),
        (CurriculumConfig(returns=(-5.0,)), (-7.0, -5.0, -9.0), [0, 0, 1, 1]),
    ],
    ids=["returns", "in a row", "converged", "env steps", "never back"],
)
def test_conditions_end_stages(config, returns, expected):
    assert stages(config, *returns) == expected


def test_first_stage_need_not_be_zero():
    assert stages(CurriculumConfig(returns=(1.0,)), 1.0, 1.0, first=3) == [3, 4, 4]
    assert CurriculumConfig(returns=(1.0,)).last_stage(3) == 4


def test_order_of_evaluations_does_not_matter():
    done = evaluations(1.0, 0.0, 2.0)
    config = CurriculumConfig(returns=(1.0, 2.0))
    assert [stage_at(config, 0, done[::-1], update) for update in (2, 3, 4)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"returns": (math.nan,)}, "must be numbers"),
        ({"returns": (1.0,), "spread": 0.1}, "evaluations 2 or more"),
        ({"evaluations": 0}, "at least 1"),
        ({"max_env_steps": -1}, "must not be negative"),
    ],
)
def test_bad_options_are_rejected(options, message):
    with pytest.raises(UserError, match=message):
        CurriculumConfig(**options)
