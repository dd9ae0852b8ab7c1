"""A2C: advantages of one step and of all steps, by hand."""

import numpy as np
import pytest

from agents import a2c
from agents.api import Trajectory
from envpool_bridge.errors import UserError
from tests.support.actor_critic_loss import learned

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
    got = learned(a2c, config, batch(), np.zeros((3, 1)), VALUE, counts=3)
    np.testing.assert_allclose(got.advantage[:, 0], advantage, rtol=1e-5)
    np.testing.assert_allclose(got.target, got.advantage + VALUE[:-1], rtol=1e-5)


def test_a2c_uses_probability_ratio_one():
    config = a2c.A2CConfig(discount=0.5)
    one, other = (learned(a2c, config, batch(), ratio, VALUE, counts=3) for ratio in (0.0, 1.0))
    np.testing.assert_array_equal(one.advantage, other.advantage)
    np.testing.assert_array_equal(one.target, other.target)


def test_lambda_out_of_range_is_rejected():
    with pytest.raises(UserError, match="gae_lambda"):
        a2c.A2CConfig(gae_lambda=-0.1)
