"""How often, and after how long, what fails is started again."""

import pytest

from envpool_bridge.errors import UserError
from envpool_bridge.options import RestartBudget, SupervisorOptions


def test_restarts_are_counted_within_the_window_only():
    budget = RestartBudget(max_restarts=2, window_seconds=10.0)
    assert [budget.grant(now, made_progress=True) for now in (0.0, 1.0, 9.9)] == [0.0, 0.0, None]
    assert budget.grant(10.0, made_progress=True) == 0.0
    assert budget.grant(10.5, made_progress=True) is None
    assert budget.total == 3


def test_budget_doubles_the_delay_without_progress():
    budget = RestartBudget(max_restarts=100, window_seconds=1e9, max_backoff_seconds=0.5)
    waits = [budget.grant(float(now), made_progress=False) for now in range(7)]
    assert waits == [0.0, 0.05, 0.1, 0.2, 0.4, 0.5, 0.5]
    assert budget.grant(8.0, made_progress=True) == 0.0
    assert [budget.grant(9.0, made_progress=False) for _ in range(2)] == [0.0, 0.05]


def test_budget_counts_restarts_in_vain_beyond_the_window():
    budget = RestartBudget(max_restarts=2, window_seconds=10.0)
    assert [budget.grant(now, made_progress=False) is None for now in (0.0, 600.0, 1200.0)] == [False, False, True]
    budget = RestartBudget(max_restarts=2, window_seconds=10.0)
    got_on = [False, False, True, False, False, False]
    assert [budget.grant(600.0 * n, made_progress=g) is None for n, g in enumerate(got_on)] == [False] * 5 + [True]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_restarts": -1}, "max_restarts must be at least 0: got -1"),
        ({"step_timeout_seconds": 0.0}, "step_timeout_seconds must be positive: got 0.0"),
        ({"min_alive_fraction": 1.5}, "min_alive_fraction must be between 0 and 1: got 1.5"),
        ({"bad_env_output": "ignore"}, "bad_env_output must be 'raise' or 'drop_episode': got 'ignore'"),
        ({"max_backoff_seconds": -1.0}, "max_backoff_seconds must be at least 0"),
    ],
)
def test_options_reject_invalid_values(settings, says):
    with pytest.raises(UserError, match=says):
        SupervisorOptions(**settings)
