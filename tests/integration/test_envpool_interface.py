"""EnvPool's interface over the pool: batches, ids, resets and errors."""

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from envpool_bridge.compat import envpool
from envpool_bridge.errors import UserError

PENDULUM = {"max_episode_steps": 5, "num_threads": 1}


def test_sync_steps_equal_single_environments():
    env = envpool.make("Pendulum-v1", env_type="gymnasium", num_envs=3, seed=7, **PENDULUM)
    alone = [gymnasium.make("Pendulum-v1", max_episode_steps=5) for _ in range(3)]
    rng = np.random.default_rng(0)
    try:
        assert len(env) == 3
        assert not env.is_async
        assert env.spec.config.batch_size == 3
        assert env.action_space == alone[0].action_space
        observations, info = env.reset()
        expected = [single.reset(seed=7 + row)[0] for row, single in enumerate(alone)]
        np.testing.assert_array_equal(observations, expected)
        assert info["elapsed_step"].tolist() == [0, 0, 0]
        for step in range(1, 18):
            actions = rng.uniform(-2, 2, (3, 1)).astype(np.float32)
            observations, rewards, terminated, truncated, info = env.step(actions)
            elapsed = step % 6  # five steps, then the step that resets
            assert info["elapsed_step"].tolist() == [elapsed] * 3
            assert truncated.tolist() == [elapsed == 5] * 3
            assert not terminated.any()
            for row, single in enumerate(alone):
                if elapsed == 0:
                    np.testing.assert_array_equal(observations[row], single.reset()[0])
                    assert rewards[row] == 0
                else:
                    observation, reward = single.step(actions[row])[:2]
                    np.testing.assert_array_equal(observations[row], observation)
                    assert rewards[row] == np.float32(reward)
    finally:
        env.close()


def test_async_batches_have_one_size_and_visit_all_environments():
    env = envpool.make("CartPole-v1", "gymnasium", num_envs=12, batch_size=4, num_threads=2)
    counts = np.zeros(12, int)
    try:
        assert env.is_async
        env.async_reset()
        for number in range(60):
            observations, rewards, terminated, truncated, info = env.recv()
            rows = info["env_id"]
            assert rows.dtype == np.int32
            assert observations.shape == (4, 4)
            assert rewards.shape == terminated.shape == truncated.shape == info["elapsed_step"].shape == (4,)
            if number < 3:
                assert not rewards.any()  # results of the reset
            counts[rows] += 1
            env.send(np.ones(4, int), rows)
    finally:
        env.close()
    assert counts.sum() == 240
    assert counts.min() >= 10


def test_seeds_of_later_resets():
    env = envpool.make("CartPole-v1", num_envs=2, seed=3, num_threads=1)
    try:
        first, _ = env.reset()
        second, _ = env.reset()
        assert not np.array_equal(first, second)
        np.testing.assert_array_equal(env.reset(seed=3)[0], first)
    finally:
        env.close()


def test_settings_reach_the_environment():
    env = envpool.make("FrozenLake-v1", num_envs=1, map_name="8x8", is_slippery=False)
    try:
        assert env.observation_space == gymnasium.spaces.Discrete(64)
        assert env.spec.reward_threshold == gymnasium.spec("FrozenLake-v1").reward_threshold
    finally:
        env.close()


class Constant(gymnasium.Env):
    """Observes its own number."""

    observation_space = gymnasium.spaces.Box(-1.0, 9.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, number):
        self.number = number

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.full(1, self.number, np.float32), {}


def test_ids_that_workers_never_register_are_accepted(monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Mine/Constant-v0", EnvSpec("Mine/Constant-v0", Constant))
    env = envpool.make("Mine/Constant-v0", num_envs=2, num_threads=1, number=7)
    try:
        assert env.reset()[0].tolist() == [[7.0], [7.0]]
    finally:
        env.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_envs": 4, "batch_size": 3}, "a batch_size that divides it"),
        ({"num_envs": 0}, "num_envs of at least 1"),
        ({"env_type": "dm"}, "env_type must be 'gymnasium', got 'dm'"),
        ({"task_id": "CartPol-v1"}, "unknown environment id 'CartPol-v1'"),
    ],
)
def test_bad_settings_are_rejected(settings, message):
    with pytest.raises(UserError, match=message):
        envpool.make(**{"task_id": "CartPole-v1", **settings})


def test_misplaced_calls_are_rejected():
    env = envpool.make("CartPole-v1", num_envs=4, batch_size=2, num_threads=1)
    try:
        with pytest.raises(UserError, match="reset of some environments, or with options"):
            env.reset(np.array([0, 1]))
        with pytest.raises(gymnasium.error.NoAsyncCallError, match="needs a send or an async_reset"):
            env.recv()
        env.async_reset()
        with pytest.raises(gymnasium.error.AlreadyPendingCallError, match="send needs a recv before it"):
            env.send(np.zeros(4, int))
        rows = env.recv()[-1]["env_id"]
        with pytest.raises(UserError, match="whole lanes of 2 environments"):
            env.send(np.zeros(1, int), rows[:1])
        with pytest.raises(UserError, match="whole lanes of 2 environments"):
            env.send(np.zeros(2, int), rows[[0, 0]])
        env.send(np.zeros(2, int), rows[::-1])
    finally:
        env.close()


class NamesItself(Constant):
    """Its infos have the names of EnvPool's own."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"env_id": self.number, "score": self.number}


def test_ids_of_the_pool_replace_those_of_environments(monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Mine/Names-v0", EnvSpec("Mine/Names-v0", NamesItself))
    env = envpool.make("Mine/Names-v0", num_envs=2, num_threads=1, number=7)
    try:
        info = env.reset()[1]
        assert info["env_id"].tolist() == [0, 1]
        assert info["score"].tolist() == [7, 7]
        assert "_env_id" not in info
    finally:
        env.close()
