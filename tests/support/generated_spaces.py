"""Strategies for hypothesis: storable spaces of every kind and nesting, and spaces that differ from them."""

import gymnasium
import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

DTYPES = (np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint32, np.float32, np.float64, np.float16)
NAMES = st.text(st.sampled_from("ab/~[]'0 "), min_size=1, max_size=4)


@st.composite
def boxes(draw, dtypes=DTYPES):
    dtype = draw(st.sampled_from(dtypes))
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    if draw(st.booleans()) and np.dtype(dtype).kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, dtype)
    low, high = (0, 100) if np.dtype(dtype).kind == "u" else (-100, 100)
    bounds = np.sort(draw(st.lists(st.integers(low, high), min_size=2, max_size=2)))
    return spaces.Box(bounds[0], bounds[1], shape, dtype)


@st.composite
def discretes(draw):
    return spaces.Discrete(draw(st.integers(1, 9)), start=draw(st.integers(-5, 5)))


@st.composite
def multi_discretes(draw):
    sizes = np.array(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    return spaces.MultiDiscrete(sizes, start=np.array([draw(st.integers(-3, 3)) for _ in sizes]))


def leaves(box_dtypes=DTYPES):
    binaries = st.builds(spaces.MultiBinary, st.integers(1, 4))
    return st.one_of(boxes(box_dtypes), discretes(), multi_discretes(), binaries)


def composites(children):
    tuples = st.lists(children, min_size=1, max_size=3).map(spaces.Tuple)
    return st.one_of(tuples, st.dictionaries(NAMES, children, min_size=1, max_size=3).map(spaces.Dict))


observations = st.recursive(leaves(), composites, max_leaves=6)
actions = st.recursive(leaves((np.float32, np.float64)), composites, max_leaves=5)


class Replays(gymnasium.Env):
    """Returns samples of `shown` regardless of its declared space; keeps the received actions."""

    def __init__(self, observation, action, shown=None, seed=0):
        self.observation_space, self.action_space = observation, action
        self._shown = shown or observation
        self._shown.seed(seed)
        self.observations, self.actions = [], []

    def _sample(self):
        self.observations.append(self._shown.sample())
        return self.observations[-1]

    def reset(self, *, seed=None, options=None):
        return self._sample(), {}

    def step(self, action):
        self.actions.append(action)
        return self._sample(), 0.0, False, False, {}
