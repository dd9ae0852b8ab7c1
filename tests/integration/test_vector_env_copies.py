"""Environments of one worker receive a copy each of what PoolVectorEnv sends, and as many calls as it is asked for."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from envpool_bridge.vector_env import PoolVectorEnv


class Taking(gymnasium.Env):
    """Changes all that it is given."""

    observation_space = spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space = spaces.Discrete(2)
    rng: np.random.Generator

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.full(1, (options or {}).pop("level", 0), np.float32), {}

    def step(self, action):
        return np.array([self.rng.random()], np.float32), 0.0, False, False, {}

    def take(self, items):
        return items.pop()


@pytest.fixture(params=[1, 2])
def env(request):
    env = PoolVectorEnv([Taking] * 4, num_workers=request.param)
    yield env
    env.close()


def test_each_environment_receives_its_own_reset_options(env):
    assert env.reset(options={"level": 3})[0].ravel().tolist() == [3.0] * 4
    mask = np.array([False, True, True, True])
    assert env.reset(options={"level": 5, "reset_mask": mask})[0].ravel().tolist() == [3.0, 5.0, 5.0, 5.0]


@pytest.mark.parametrize("is_list", [False, True])
def test_each_environment_receives_its_own_value_of_an_attribute(env, is_list):
    env.reset()
    rng = np.random.default_rng(0)
    env.set_attr("rng", [rng] * 4 if is_list else rng)
    for _ in range(2):
        expected = np.float32(rng.random())
        assert env.step(np.zeros(4, int))[0].ravel().tolist() == [expected] * 4


def test_each_environment_receives_its_own_arguments_of_a_call(env):
    assert env.call("take", [1, 2]) == (2,) * 4
    items = [1, 2]
    assert env.apply(lambda one: one.unwrapped.take(items)) == (2,) * 4


def test_a_repeated_index_is_another_call(env):
    env.set_attr("items", [["a", "b", "c"]] * 4)
    assert env.apply(lambda one: one.unwrapped.items.pop(), [3, 0, 3]) == ("c", "c", "b")
    assert env.apply(lambda one: len(one.unwrapped.items)) == (2, 3, 3, 1)
