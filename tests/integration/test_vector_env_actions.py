"""Actions that a vector environment hands on, and what it does about those that are no numbers."""

import resource
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from envpool_bridge.errors import BadEnvOutputError
from envpool_bridge.vector_env import PoolVectorEnv


class ReportsActions(gymnasium.Env):
    """Reports each action as an info; observes it where `shows` is true."""

    observation_space = spaces.Box(-10.0, 10.0, (1,))

    def __init__(self, action_space, shows=False):
        self.action_space, self.shows = action_space, shows

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        if np.isinf(action).any():
            raise FloatingPointError("too strong")
        return np.float32(action) if self.shows else np.zeros(1, np.float32), 0.0, False, False, {"action": action}


STRENGTH = spaces.Box(-1.0, 1.0, (1,))


@pytest.fixture
def make():
    made = []

    def make_one(*arguments, **keywords):
        made.append(
            PoolVectorEnv(partial(ReportsActions, *arguments), 2, num_workers=1, timeout_seconds=30.0, **keywords)
        )
        made[-1].reset(seed=0)
        return made[-1]

    yield make_one
    for env in made:
        env.close()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_environments_judge_actions_that_are_not_finite(make, mode):
    env = make(STRENGTH, autoreset_mode=mode)
    given = np.array([[np.nan], [0.5]], np.float32)
    np.testing.assert_array_equal(np.stack(list(env.step(given)[4]["action"])), given)
    with pytest.raises(FloatingPointError, match="too strong"):
        env.step(np.array([[np.inf], [0.5]], np.float32))
    env.reset()
    assert env.step(np.zeros((2, 1), np.float32))[1].tolist() == [0.0, 0.0]


def test_an_observation_that_is_not_finite_ends_a_strict_pool(make):
    env = make(STRENGTH, True, strict=True)
    with pytest.raises(BadEnvOutputError, match="row 1, step 1: bad observation"):
        env.step(np.array([[0.5], [np.nan]], np.float32))


def test_a_discrete_of_millions_costs_no_memory(make):
    env = make(spaces.Discrete(3_000_000))
    assert list(env.step(np.array([2_999_999, 4096]))[4]["action"]) == [2_999_999, 4096]
    megabytes = env.apply(lambda _: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    assert max(megabytes) < 250
