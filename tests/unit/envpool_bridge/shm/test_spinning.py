"""Whether waiters spin is decided from the workers and acting threads of all open pools of the process."""

import gc
import os
import weakref

import pytest

from envpool_bridge import pool as pool_module
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.probes.single_agent import MatchObservation
from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.supervisor.supervisor import Supervisor


@pytest.fixture
def spins(monkeypatch):
    """Returns a function that starts pools on so many cores: of each, whether workers spin, and whether acting does."""
    configs = []
    monkeypatch.setattr(pool_module, "_OPEN", weakref.WeakSet(), raising=False)
    monkeypatch.setattr(Supervisor, "start", lambda self, config, *_: configs.append(config))

    def started(num_cores, *workers):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(num_cores)))
        pools = [
            EnvPool(GymnasiumSource(MatchObservation), PoolShape(n, 1, 1, 1, 2, 2), PoolOptions(run_seed=0))
            for n in workers
        ]
        found = []
        try:
            for pool, count in zip(pools, workers, strict=True):
                pool.start([EpisodeReset((0,), (None,))] * count)
                found.append((configs[-1].spin_seconds > 0, pool._acting._spin_seconds > 0))
        finally:
            for pool in pools:
                pool.close()
        return found

    return started


@pytest.mark.parametrize(
    ("num_cores", "workers", "expected"),
    [
        (2, [1], (True, True)),
        (2, [2], (True, False)),
        (2, [3], (False, False)),
        (2, [1, 1], (True, False)),
        (4, [1, 1], (True, True)),
        (4, [2, 2], (True, False)),
        (4, [2, 1], (True, False)),
        (5, [2, 2, 2], (False, False)),
        (9, [2, 2, 2], (True, True)),
    ],
)
def test_pools_that_are_open_at_once_share_the_cores(spins, num_cores, workers, expected):
    assert spins(num_cores, *workers) == [expected] * len(workers)


def test_a_closed_or_forgotten_pool_counts_no_more(spins):
    assert spins(2, 2) == [(True, False)]
    forgotten = EnvPool(GymnasiumSource(MatchObservation), PoolShape(2, 1, 1, 1, 2, 2))
    server = forgotten._workers
    assert spins(2, 1) == [(False, False)]
    del forgotten
    gc.collect()
    server.stop()
    assert spins(2, 1) == [(True, True)]
