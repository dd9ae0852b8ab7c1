"""A2C: advantages of one step and of all steps, by hand."""

import numpy as np
import pytest

from agents import a2c
from agents.api import Trajectory
from envpool_bridge.errors import UserError

VALUE = np.array([1.0, 3.0, 5.0, 7.0], np.float32)[:, None]


def batch() -> Trajectory:
    """One row: two steps of an episode, which goes on, and a third."""
    column = lambda *x: np.array(x, np.float32)[:, None]  # noqa: E731
    no = np.zeros((3, 1), bool)
    return Trajectory(None, None, None, column(2.0, 4.0, 6.0), no, no, ~no, no, {})


@pytest.mark.parametrize(
    ("gae_lambda", "advantage"),
    # r + V'/2 - V; and the same with all rewards: 6 + 7/2 - 5, 4 + 9.5/2 - 3, 2 + 8.75/2 - 1
    [(0.0, [2.5, 3.5, 4.5]), (1.0, [5.375, 5.75, 4.5])],
)
def test_lambda_is_between_one_reward_and_all_of_them(gae_lambda, advantage):
    config = a2c.A2CConfig(discount=0.5, gae_lambda=gae_lambda)
    got = a2c.targets(config, batch(), np.full((3, 1), np.nan), VALUE)
    np.testing.assert_allclose(got.advantage[:, 0], advantage, rtol=1e-6)
    np.testing.assert_allclose(got.value, got.advantage + VALUE[:-1], rtol=1e-6)


def test_lambda_out_of_range_is_refused():
    with pytest.raises(UserError, match="gae_lambda"):
        a2c.A2CConfig(gae_lambda=-0.1)
