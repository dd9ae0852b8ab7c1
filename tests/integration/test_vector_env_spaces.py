"""PoolVectorEnv with spaces that shared arrays cannot hold: they are sent as objects."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import SyncVectorEnv

from envpool_bridge.vector_env import PoolVectorEnv


class Words(gymnasium.Env):
    """Observations and actions of a custom space, or next to one in a Dict."""

    def __init__(self, space):
        self.observation_space = self.action_space = space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return action, 1.0, False, False, {"kind": type(action).__name__}


class Names(gymnasium.Space):
    """Strings of one kind."""

    def sample(self, mask=None, probability=None):
        return f"name {int(self.np_random.integers(9))}"

    def contains(self, x):
        return isinstance(x, str)

    def __eq__(self, other):
        return isinstance(other, Names)


BOX = spaces.Box(-5, 5, (2,), np.int32)
OBJECTS = {
    "text": spaces.Text(6),
    "sequence": spaces.Sequence(spaces.Discrete(4)),
    "graph": spaces.Graph(spaces.Box(-1, 1, (2,)), None),
    "one of": spaces.OneOf([spaces.Discrete(3), spaces.Box(0, 1, (2,))]),
    "dict": spaces.Dict({"word": spaces.Text(4), "place": BOX}),
    "wide discrete": spaces.Discrete(2**40),
    "names": Names(),
    "named": spaces.Tuple((Names(), BOX)),
    "integers": BOX,
    "bools": spaces.Box(0, 1, (3,), np.bool_),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_spaces_of_any_kind_equal_sync_vector_env(kind):
    make = partial(Words, OBJECTS[kind])
    ours, theirs = PoolVectorEnv(make, 2, shared_memory=False, timeout_seconds=30.0), SyncVectorEnv([make] * 2)
    try:
        assert_equal_steps(ours, theirs)
    finally:
        ours.close()


def assert_equal_steps(ours, theirs):
    assert data_equivalence(ours.reset(seed=3), theirs.reset(seed=3))
    for _ in range(3):
        actions = theirs.action_space.sample()
        assert data_equivalence(ours.step(actions), theirs.step(actions), exact=True)


def test_custom_spaces_need_shared_memory_false():
    with pytest.raises(ValueError, match=r"observation\[0\] is a Names.*pass shared_memory=False"):
        PoolVectorEnv(partial(Words, OBJECTS["named"]), 2)
