"""Environments of PoolVectorEnv can be reset after any number of steps, and any number of times in a row."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import SyncVectorEnv

from envpool_bridge.vector_env import PoolVectorEnv

MAKE = partial(gymnasium.make, "CartPole-v1", max_episode_steps=13)


def both(num_workers, lanes_per_worker):
    ours = PoolVectorEnv(MAKE, 4, num_workers=num_workers, lanes_per_worker=lanes_per_worker, timeout_seconds=20.0)
    return ours, SyncVectorEnv([MAKE] * 4)


def assert_same(ours, theirs):
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, other, strict=True)


@pytest.mark.parametrize(("num_workers", "lanes_per_worker"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_resets_equal_sync_vector_env_after_any_step(num_workers, lanes_per_worker):
    ours, theirs = both(num_workers, lanes_per_worker)
    rng = np.random.default_rng(0)
    try:
        for steps in range(1, 41):
            seed = steps if steps % 3 else None
            if steps == 1:
                seed = 0
            assert_same(ours.reset(seed=seed)[:1], theirs.reset(seed=seed)[:1])
            for _ in range(steps):
                actions = rng.integers(0, 2, 4)
                assert_same(ours.step(actions)[:4], theirs.step(actions)[:4])
    finally:
        ours.close()
        theirs.close()


@pytest.mark.parametrize(("num_workers", "lanes_per_worker"), [(1, 1), (2, 2)])
def test_forty_resets_in_a_row(num_workers, lanes_per_worker):
    ours, theirs = both(num_workers, lanes_per_worker)
    try:
        for seed in range(40):
            assert_same(ours.reset(seed=seed)[:1], theirs.reset(seed=seed)[:1])
        for _ in range(20):
            assert_same(ours.step(np.ones(4, int))[:4], theirs.step(np.ones(4, int))[:4])
    finally:
        ours.close()
        theirs.close()


def test_a_reset_at_the_first_step_of_a_slot_after_send_and_recv():
    ours, theirs = both(1, 2)
    try:
        ours.reset(seed=0)
        theirs.reset(seed=0)
        for _ in range(3):
            for _ in range(16):
                ours.send(np.zeros(4, int))
                theirs.step(np.zeros(4, int))
                got = len(ours.recv()[1])
                while got < 4:
                    got += len(ours.recv()[1])
            assert_same(ours.reset()[:1], theirs.reset()[:1])
            for _ in range(15):
                assert_same(ours.step(np.ones(4, int))[:4], theirs.step(np.ones(4, int))[:4])
    finally:
        ours.close()
        theirs.close()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_lane_that_is_held_back_delays_no_other_lane(num_workers):
    num_envs = 2 * num_workers
    ours = PoolVectorEnv(MAKE, num_envs, num_workers=num_workers, lanes_per_worker=2, timeout_seconds=60.0)
    theirs = [SyncVectorEnv([MAKE] * num_workers) for _ in range(2)]
    lanes = [slice(0, num_workers), slice(num_workers, num_envs)]
    rng = np.random.default_rng(0)
    try:
        observations = ours.reset(seed=0)[0]
        for lane, env in zip(lanes, theirs, strict=True):
            np.testing.assert_array_equal(observations[lane], env.reset(seed=lane.start)[0], strict=True)
        for lane, num_steps in ((0, 70), (1, 5), (0, 40), (1, 150), (0, 1)):
            rows = np.arange(num_envs)[lanes[lane]]
            for _ in range(num_steps):
                actions = rng.integers(0, 2, num_workers)
                ours.send(actions, rows)
                *results, infos = ours.recv()
                assert infos["env_id"].tolist() == rows.tolist()
                assert_same(results, theirs[lane].step(actions)[:4])
        for _ in range(40):  # the lanes stay apart
            results = ours.step(np.ones(num_envs, int))[:4]
            for lane, env in zip(lanes, theirs, strict=True):
                assert_same([values[lane] for values in results], env.step(np.ones(num_workers, int))[:4])
        results = ours.reset(seed=3)[:1]
        for lane, env in zip(lanes, theirs, strict=True):
            assert_same([values[lane] for values in results], env.reset(seed=3 + lane.start)[:1])
    finally:
        for env in (ours, *theirs):
            env.close()


def test_a_masked_reset_needs_the_results_of_all_rows():
    env = PoolVectorEnv(MAKE, 4, num_workers=1, lanes_per_worker=2, timeout_seconds=20.0)
    ones = np.ones(4, int)
    try:
        env.reset(seed=0)
        env.send(ones)
        rows = env.recv()[4]["env_id"]
        mask = np.isin(np.arange(4), rows)
        with pytest.raises(AlreadyPendingCallError, match="a masked reset needs a recv of all results before it"):
            env.reset(options={"reset_mask": mask})
        assert env.recv()[1].tolist() == [1.0, 1.0], "the results of the other rows are not lost"
        env.reset(options={"reset_mask": mask})
        assert env.get_attr("_elapsed_steps") == tuple(0 if each else 1 for each in mask)
        env.send(ones)
        env.reset()
        assert env.get_attr("_elapsed_steps") == (0,) * 4, "a reset of all rows replaces their results"
        with pytest.raises(NoAsyncCallError):
            env.recv()
    finally:
        env.close()


class FailsOnce(gymnasium.Env):
    """Raises in its second reset."""

    observation_space = gymnasium.spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    resets = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        if self.resets == 2:
            raise LookupError("no second level")
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), 1.0, False, False, {}


def test_a_failed_reset_leaves_no_results_to_receive():
    env = PoolVectorEnv(FailsOnce, 2, num_workers=1, lanes_per_worker=2)
    try:
        env.reset()
        env.send(np.zeros(2, int))
        with pytest.raises(LookupError, match="no second level"):
            env.reset()
        with pytest.raises(NoAsyncCallError):
            env.recv()
        assert env.reset()[0].tolist() == [[0.0], [0.0]]
    finally:
        env.close()
