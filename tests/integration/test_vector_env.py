"""PoolVectorEnv is what SyncVectorEnv is, step by step, and fails clearly where others hang."""

import math
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from envpool_bridge.envs.probes.single_agent import MatchObservation
from envpool_bridge.errors import BadEnvOutputError, UserError, WaitTimeoutError, WorkerDiedError, WorkerError
from envpool_bridge.options import SupervisorOptions
from envpool_bridge.vector_env import PoolVectorEnv


class Fine(gymnasium.Env):
    """Observations, actions and rewards that need all of their 64 bits."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.normal(size=2), {}

    def step(self, action):
        return self.np_random.normal(size=2) + action / 3.0, float(action[0]) / 7.0, False, False, {}


class Counts(gymnasium.Env):
    """Integers beyond 32 bits."""

    observation_space = spaces.Box(0, 2**62, (1,), np.int64)
    action_space = spaces.Discrete(2, start=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([2**40 + int(self.np_random.integers(9))]), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return np.array([2**41 + int(action)]), 2**53 + 1.0, False, False, {}


class TellsAll(gymnasium.Wrapper):
    """Adds infos: a number at every step, a string now and then, the options at reset."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1", max_episode_steps=13))
        self.count = 0

    def reset(self, *, seed=None, options=None):
        observation, _ = self.env.reset(seed=seed)
        return observation, {"options": options["level"] if options else -1}

    def step(self, action):
        self.count += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        info = {**info, "count": self.count}
        if self.count % 3 == 0:
            info["word"] = f"step {self.count}"
        return observation, reward, terminated, truncated, info


ENVS = {
    "CartPole": partial(gymnasium.make, "CartPole-v1"),
    "Pendulum": partial(gymnasium.make, "Pendulum-v1", max_episode_steps=20),
    "Discrete observation": partial(gymnasium.make, "FrozenLake-v1"),
    "infos": TellsAll,
    "64-bit floats": Fine,
    "64-bit integers": Counts,
    "HalfCheetah": partial(gymnasium.make, "HalfCheetah-v5"),
}


def assert_same_infos(ours, theirs):
    assert set(ours) == set(theirs)
    for name, values in theirs.items():
        if isinstance(values, dict):
            assert_same_infos(ours[name], values)
        else:
            np.testing.assert_array_equal(ours[name], values)


def make_or_skip(name):
    if name == "HalfCheetah":
        pytest.importorskip("mujoco")
    return ENVS[name]


@pytest.mark.parametrize("lanes_per_worker", [1, 2])
@pytest.mark.parametrize("name", ENVS)
def test_vector_env_equals_sync_vector_env_exactly(name, lanes_per_worker):
    make = make_or_skip(name)
    sync = SyncVectorEnv([make] * 4)
    sync.action_space.seed(1)
    with_pool = PoolVectorEnv(make, 4, num_workers=2, lanes_per_worker=lanes_per_worker)
    try:
        assert with_pool.observation_space == sync.observation_space
        assert with_pool.action_space == sync.action_space
        assert with_pool.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        for seed in (7, [1, 2, 3, 4]):
            options = {"level": 5} if name == "infos" else None
            ours, theirs = with_pool.reset(seed=seed, options=options), sync.reset(seed=seed, options=options)
            np.testing.assert_array_equal(ours[0], theirs[0])
            assert_same_infos(ours[1], theirs[1])
            for _ in range(60):
                actions = sync.action_space.sample()
                ours, theirs = with_pool.step(actions), sync.step(actions)
                assert ours[0].dtype == theirs[0].dtype
                for mine, other in zip(ours[:4], theirs[:4], strict=True):
                    np.testing.assert_array_equal(mine, other, strict=True)
                assert_same_infos(ours[4], theirs[4])
    finally:
        with_pool.close()
        sync.close()


def test_send_and_recv_equal_single_environments():
    alone = [gymnasium.make("Pendulum-v1", max_episode_steps=9) for _ in range(4)]
    env = PoolVectorEnv(
        partial(gymnasium.make, "Pendulum-v1", max_episode_steps=9), 4, num_workers=2, lanes_per_worker=2
    )
    rng = np.random.default_rng(0)
    try:
        first, _ = env.reset(seed=3)
        for row, single in enumerate(alone):
            np.testing.assert_array_equal(first[row], single.reset(seed=3 + row)[0])
        waiting = rng.uniform(-2, 2, (4, 1)).astype(np.float32)
        ended = np.zeros(4, bool)
        env.send(waiting)
        for _ in range(60):
            observation, reward, terminated, truncated, info = env.recv()
            for index, row in enumerate(info["env_id"]):
                expected = (
                    (alone[row].reset()[0], 0.0, False, False) if ended[row] else alone[row].step(waiting[row])[:4]
                )
                got = (observation[index], reward[index], terminated[index], truncated[index])
                np.testing.assert_array_equal(got[0], expected[0])
                assert got[1:] == expected[1:]
                ended[row] = got[2] or got[3]
                waiting[row] = rng.uniform(-2, 2, 1)
            env.send(waiting[info["env_id"]], info["env_id"])
    finally:
        env.close()


def test_send_and_recv_hand_out_lanes_as_they_finish():
    env = PoolVectorEnv(ENVS["CartPole"], 8, num_workers=1, lanes_per_worker=2)
    try:
        env.reset(seed=0)
        env.send(np.zeros(8, int))
        seen = np.zeros(8, int)
        for _ in range(40):
            observation, reward, _, _, info = env.recv()
            rows = info["env_id"]
            assert observation.shape == (len(rows), 4)
            assert reward.shape == (len(rows),)
            seen[rows] += 1
            env.send(np.ones(len(rows), int), rows)
        assert seen.min() >= 10
    finally:
        env.close()


OBSERVATIONS = {
    "nan": np.array([np.nan], np.float32),
    "range": np.array([1.5], np.float32),
    "dtype": np.zeros(1, np.float64),
    "shape": np.zeros((1, 1), np.float32),
    "none": None,
}


class Bad(MatchObservation):
    """Gives what `field` says at its third step."""

    def __init__(self, field=""):
        super().__init__()
        self.field, self.count = field, 0

    def step(self, action):
        self.count += 1
        observation, reward, terminated, truncated, info = super().step(action)
        if self.count == 3:
            observation = OBSERVATIONS.get(self.field, observation)
            if self.field == "reward":
                reward = np.array([1.0])
            elif self.field == "flag":
                terminated = 1
            elif self.field == "raise":
                raise RuntimeError("the belt came off")
            elif self.field == "exit":
                os._exit(3)
            elif self.field == "hang":
                time.sleep(3600)  # a close that waited for it would meet the time limit of tests
        return observation, reward, terminated, truncated, info


def steps(env, count):
    for _ in range(count):
        env.step(np.zeros(2, int))


def step_until_it_breaks(field, error, **arguments):
    env = PoolVectorEnv(partial(Bad, field), 2, num_workers=1, **arguments)
    try:
        env.reset(seed=0)
        with pytest.raises(error) as raised:
            steps(env, 10)
        if error is not WaitTimeoutError:
            with pytest.raises(error, match=re.escape(str(raised.value).splitlines()[0])):
                env.reset()
        return str(raised.value)
    finally:
        env.close()
        env.close()


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("nan", "bad observation: expected a finite value"),
        ("range", "bad observation: expected at most 1.0"),
        ("dtype", "bad observation: expected dtype float32, got float64"),
        ("shape", r"bad observation: expected shape \(1,\), got \(1, 1\)"),
        ("none", "bad observation: expected a numpy array"),
        ("reward", "bad reward: expected a number, got an array of shape"),
        ("flag", "bad terminated: expected a bool, got int 1"),
    ],
)
def test_vector_env_rejects_wrong_output_by_row_and_field(field, says):
    message = step_until_it_breaks(field, BadEnvOutputError, strict=True)
    assert "row 0, step " in message
    assert re.search(says, message), message


def test_vector_env_raises_with_row_step_and_traceback():
    env = PoolVectorEnv(partial(Bad, "raise"), 2, num_workers=1)
    try:
        env.reset(seed=0)
        with pytest.raises(RuntimeError, match="^the belt came off$") as raised:
            steps(env, 10)
    finally:
        env.close()
    assert isinstance(raised.value.__cause__, WorkerError)
    message = str(raised.value.__cause__)
    assert "row 0, step 5: RuntimeError: the belt came off" in message
    assert "row 1, step 5: RuntimeError: the belt came off" in message
    assert 'raise RuntimeError("the belt came off")' in message


def test_a_worker_that_exits_is_an_error_with_its_status():
    assert "exit status 3" in step_until_it_breaks("exit", WorkerDiedError)


def test_vector_env_times_out_on_a_hang_and_closes():
    assert "did not finish in time" in step_until_it_breaks("hang", WaitTimeoutError, timeout_seconds=0.5)


class StartsSlowly(MatchObservation):
    """Takes longer to make, in a worker, than a step may take."""

    def __init__(self, main=None):
        super().__init__()
        if os.getpid() != main:
            time.sleep(1.0)


@pytest.mark.slow
def test_starting_the_workers_may_take_longer_than_a_step():
    env = PoolVectorEnv(partial(StartsSlowly, os.getpid()), 2, num_workers=1, timeout_seconds=0.5)
    try:
        assert env.reset(seed=0)[0].shape == (2, 1)
    finally:
        env.close()


class Slow(MatchObservation):
    """Takes long for a step."""

    def step(self, action):
        time.sleep(1.0)
        return super().step(action)


@pytest.mark.slow
def test_only_the_callers_time_limits_end_a_step(monkeypatch):
    defaults = list(SupervisorOptions.__init__.__defaults__)
    defaults[defaults.index(SupervisorOptions().step_timeout_seconds)] = 0.2
    monkeypatch.setattr(SupervisorOptions.__init__, "__defaults__", tuple(defaults))
    assert SupervisorOptions().step_timeout_seconds == 0.2
    env = PoolVectorEnv(Slow, 1, num_workers=1, timeout_seconds=math.inf)
    try:
        env.reset(seed=0)
        assert env.step(np.zeros(1, int))[0].shape == (1, 1)
        env.step_async(np.zeros(1, int))
        assert env.step_wait(timeout=1e9)[0].shape == (1, 1)
    finally:
        env.close()


def poll_until(wait):
    """Polls a pending operation without ever waiting in it; returns its results."""
    deadline = time.monotonic() + 300.0
    while True:
        try:
            return wait(timeout=0)
        except WaitTimeoutError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def polled_steps(env, count):
    for _ in range(count):
        env.step_async(np.zeros(2, int))
        poll_until(env.step_wait)


def test_polling_a_dead_worker_raises_its_error():
    env = PoolVectorEnv(partial(Bad, "exit"), 2, num_workers=1)
    try:
        env.reset_async(seed=0)
        poll_until(env.reset_wait)
        with pytest.raises(WorkerDiedError, match="exit status 3"):
            polled_steps(env, 10)
    finally:
        env.close()


def test_a_killed_worker_is_an_error_that_names_the_signal():
    env = PoolVectorEnv(ENVS["CartPole"], 2, num_workers=1)
    try:
        env.reset(seed=0)
        os.kill(env._lanes.pool._workers._pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="SIGKILL"):
            steps(env, 3)
        for again in (env.reset, lambda: steps(env, 1), lambda: env.get_attr("spec")):
            with pytest.raises(WorkerDiedError, match="SIGKILL"):
                again()
    finally:
        env.close()


FORKS = """
import os, sys, gymnasium, numpy as np
from functools import partial
from envpool_bridge.vector_env import PoolVectorEnv
envs = PoolVectorEnv(partial(gymnasium.make, "CartPole-v1"), 2, num_workers=1)
envs.reset(seed=0)
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    envs.step(np.zeros(2, int))
    envs.close()
else:
    envs.close()
    sys.exit()
"""


def test_a_forked_child_leaves_the_workers_to_its_parent():
    ended = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_sizes_that_do_not_divide_are_rejected():
    with pytest.raises(UserError, match="multiple of num_workers"):
        PoolVectorEnv(ENVS["CartPole"], 5, num_workers=2)
