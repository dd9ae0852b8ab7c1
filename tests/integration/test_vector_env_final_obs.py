"""Final observations of episodes in SAME_STEP: equal to SyncVectorEnv's, validated, and returned by recv."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from envpool_bridge.errors import BadEnvOutputError
from envpool_bridge.vector_env import PoolVectorEnv

SAME_STEP = AutoresetMode.SAME_STEP
SPACES = {
    "box": spaces.Box(-100.0, 100.0, (3,), np.float64),
    "image": spaces.Box(0, 255, (2, 2), np.uint8),
    "discrete": spaces.Discrete(50, start=-5),
    "nested": spaces.Dict(
        {"a": spaces.Box(1.0, 200.0, (2,), np.float32), "b": spaces.Tuple((spaces.MultiBinary(3), spaces.Discrete(50)))}
    ),
}


class Counting(gymnasium.Env):
    """Episodes of `length` steps whose observations hold the step, in the same memory every time if `reuses_memory`."""

    action_space = spaces.Discrete(2)

    def __init__(self, observation_space, length, reports=False, reuses_memory=True):
        self.observation_space, self.length, self.reports = observation_space, length, reports
        self.memory, self.reuses_memory = None, reuses_memory

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.observe(), {"began": True} if self.reports else {}

    def step(self, action):
        self.count += 1
        ended = self.count == self.length
        return self.observe(), float(action), ended, False, {"count": self.count} if self.reports else {}

    def observe(self):
        if isinstance(self.observation_space, spaces.Box):
            if self.memory is None or not self.reuses_memory:
                self.memory = np.empty(self.observation_space.shape, self.observation_space.dtype)
            self.memory[...] = self.count + 10
            return self.memory
        if isinstance(self.observation_space, spaces.Discrete):
            return np.int64(self.count)
        binary = np.full(3, self.count % 2, np.int8)
        return {"a": np.full(2, self.count + 1, np.float32), "b": (binary, np.int64(self.count))}


def assert_same_tree(ours, theirs):
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs)
        for key, value in theirs.items():
            assert_same_tree(ours[key], value)
    elif isinstance(theirs, tuple) or (isinstance(theirs, np.ndarray) and theirs.dtype == object):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert_same_tree(mine, other)
    elif theirs is None:
        assert ours is None
    else:
        np.testing.assert_array_equal(ours, theirs, strict=True)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("reports", [False, True])
@pytest.mark.parametrize(("num_workers", "lanes_per_worker"), [(1, 1), (2, 2)])
def test_final_observations_equal_sync_vector_env(space, reports, num_workers, lanes_per_worker):
    functions = [partial(Counting, SPACES[space], length, reports) for length in (1, 3, 5, 40)]
    ours = PoolVectorEnv(
        functions, num_workers=num_workers, lanes_per_worker=lanes_per_worker, autoreset_mode=SAME_STEP
    )
    # SyncVectorEnv keeps references to final observations.
    theirs = SyncVectorEnv([partial(make, reuses_memory=False) for make in functions], autoreset_mode=SAME_STEP)
    rng = np.random.default_rng(0)
    try:
        assert_same_tree(ours.reset(seed=0), theirs.reset(seed=0))
        for _ in range(50):
            actions = rng.integers(0, 2, 4)
            assert_same_tree(ours.step(actions), theirs.step(actions))
    finally:
        ours.close()
        theirs.close()


def test_recv_returns_final_observations_of_its_rows():
    functions = [partial(Counting, SPACES["box"], length) for length in (2, 3, 4, 5)]
    env = PoolVectorEnv(functions, num_workers=1, lanes_per_worker=2, autoreset_mode=SAME_STEP)
    steps, num_finals = np.zeros(4, int), 0
    try:
        env.reset(seed=0)
        env.send(np.zeros(4, int))
        for _ in range(24):
            _, _, terminations, _, info = env.recv()
            rows = info["env_id"]
            steps[rows] += 1
            ended = steps[rows] % (rows + 2) == 0
            np.testing.assert_array_equal(terminations, ended)
            if ended.any():
                np.testing.assert_array_equal(info["_final_obs"], ended)
                assert len(info["final_obs"]) == len(rows)
                for place in np.flatnonzero(ended):
                    np.testing.assert_array_equal(info["final_obs"][place], np.full(3, rows[place] + 12.0))
                    num_finals += 1
            else:
                assert "final_obs" not in info
            env.send(np.zeros(len(rows), int), rows)
    finally:
        env.close()
    assert num_finals > 10


@pytest.mark.parametrize(("row", "length"), [(0, 2), (2, 18)])
def test_a_final_observation_outside_its_space_names_the_row(row, length):
    space = spaces.Box(-100.0, 10.0 + length - 1, (3,), np.float64)
    functions = [partial(Counting, space, length if each == row else 1 + each % 2) for each in range(4)]
    env = PoolVectorEnv(functions, num_workers=1, autoreset_mode=SAME_STEP, strict=True)
    try:
        env.reset(seed=0)
        for _ in range(length - 1):
            env.step(np.zeros(4, int))
        with pytest.raises(BadEnvOutputError, match=rf"row {row}, step {length}: .*observation"):
            env.step(np.zeros(4, int))
    finally:
        env.close()


class Spelling(Counting):
    """`Counting` whose actions are words, which are sent as objects; their lengths are rewards."""

    action_space = spaces.Text(5)

    def step(self, action):
        return super().step(len(action))


@pytest.mark.parametrize("space", ["box", "nested"])
def test_final_observations_of_actions_that_are_objects(space):
    functions = [partial(Spelling, SPACES[space], length) for length in (1, 3, 5)]
    ours = PoolVectorEnv(functions, num_workers=1, autoreset_mode=SAME_STEP)
    theirs = SyncVectorEnv([partial(make, reuses_memory=False) for make in functions], autoreset_mode=SAME_STEP)
    try:
        assert_same_tree(ours.reset(seed=0), theirs.reset(seed=0))
        for _ in range(12):
            assert_same_tree(ours.step(("a", "ab", "abc")), theirs.step(("a", "ab", "abc")))
    finally:
        ours.close()
        theirs.close()


class Uninformed(Counting):
    """`Counting` whose last step of an episode has no dict of infos."""

    def step(self, action):
        *result, ended, truncated, info = super().step(action)
        return *result, ended, truncated, None if ended else info


def test_a_bad_info_of_a_last_step_names_the_row():
    env = PoolVectorEnv([partial(Uninformed, SPACES["box"], length) for length in (3, 2)], autoreset_mode=SAME_STEP)
    try:
        env.reset(seed=0)
        env.step(np.zeros(2, int))
        with pytest.raises(BadEnvOutputError, match="row 1, step 2: bad info: expected a dict, got NoneType"):
            env.step(np.zeros(2, int))
    finally:
        env.close()
