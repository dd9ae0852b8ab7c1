"""Where a pool's workers run, and which rows of a run they have."""

import os
from pathlib import Path

import numpy as np
import pytest

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.probes.single_agent import MatchObservation
from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.errors import BadEnvOutputError
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.shm.layout import PoolShape
from tests.support.level_env import LevelEnv

SHAPE = PoolShape(2, 1, 1, 3, 4, 2)
RESETS = [EpisodeReset((0,) * 3, (None,) * 3)] * 2


class NeverFinite(MatchObservation):
    """Its rewards are infinite."""

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float("inf"), terminated, truncated, info


def begun(options, source=MatchObservation):
    pool = EnvPool(GymnasiumSource(source), SHAPE, options)
    pool.start(RESETS)
    assert pool.wait_started(20.0)
    return pool


def step_for_ever(pool):
    while True:
        for lane in pool.wait_ready(20.0):
            pool.post_actions(lane)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_workers_keep_to_the_cores_they_are_given():
    allowed = sorted(os.sched_getaffinity(0))
    with begun(PoolOptions(run_seed=0, cores=(1, 0))) as pool:
        kept = [os.sched_getaffinity(pid) for pid in pool._workers._pids]
    assert kept == [{allowed[1]}, {allowed[0]}]
    with begun(PoolOptions(run_seed=0)) as pool:
        assert {frozenset(os.sched_getaffinity(pid)) for pid in pool._workers._pids} == {frozenset(allowed)}


def test_timer_slack_applies_only_to_workers():
    before = Path("/proc/self/timerslack_ns").read_text()
    with begun(PoolOptions(run_seed=0)) as pool:
        assert {Path(f"/proc/{pid}/timerslack_ns").read_text() for pid in pool._workers._pids} == {"1\n"}
    assert Path("/proc/self/timerslack_ns").read_text() == before != "1\n"


def test_two_pools_share_rows_like_one_pool():
    whole = EnvPool(GymnasiumSource(MatchObservation), PoolShape(2, 1, 1, 6, 4, 2), PoolOptions(run_seed=5))
    with whole:
        whole.start([EpisodeReset((0,) * 6, (None,) * 6)] * 2)
        assert whole.wait_started(20.0)
        expected = whole.views[0].observation[0].copy()
    halves = []
    for first_row in (0, 6):
        with begun(PoolOptions(run_seed=5, first_row=first_row)) as pool:
            halves.append(pool.views[0].observation[0].copy())
    np.testing.assert_array_equal(np.concatenate(halves), expected)
    assert not np.array_equal(*halves)


def test_bad_value_is_rejected_before_its_slot_is_full():
    with begun(PoolOptions(run_seed=0, first_row=40), NeverFinite) as pool:
        with pytest.raises(
            BadEnvOutputError, match=r"row 4\d, step \d: bad reward: expected a finite float32, got inf"
        ) as raised:
            step_for_ever(pool)
        assert "\n" not in str(raised.value)  # no traceback, which would show this package alone
        assert pool._counters.num_committed() == 0


def test_levels_without_an_agent_change_no_episode():
    seen = []
    for levels in (0, 5):
        source, options = GymnasiumSource(LevelEnv, levels=levels), PoolOptions(run_seed=0)
        with EnvPool(source, PoolShape(2, 1, 1, 3, 8, 2), options) as pool:
            pool.start(RESETS)
            assert pool.wait_started(20.0)
            while not pool._counters.num_committed():
                for lane in pool.wait_ready(20.0):
                    pool.post_actions(lane)
            seen.append(pool.views[0].observation.copy())
    np.testing.assert_array_equal(*seen)
    assert len(np.unique(seen[0][..., 0])) > 3, "no row was reset"
