import gc

import gymnasium
import numpy as np
import pytest

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.protocol import GymnasiumReset
from envpool_bridge.pool import EnvPool
from envpool_bridge.shm.layout import PoolShape

CYCLES_A_STEP = 1000


class Cycle:
    """What only the collector can free; counts how many of its kind are there."""

    alive = 0

    def __init__(self) -> None:
        self.me = self
        Cycle.alive += 1

    def __del__(self) -> None:
        Cycle.alive -= 1


class LeavesCycles(gymnasium.Env):
    """Observes (objects that wait for the collector, its threshold, objects that it leaves alone since this was made)."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.left_alone = gc.get_freeze_count()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action):
        for _ in range(CYCLES_A_STEP):
            Cycle()
        return self._seen(), 0.0, False, False, {}

    def _seen(self) -> np.ndarray:
        return np.array([Cycle.alive, gc.get_threshold()[0], gc.get_freeze_count() - self.left_alone], np.float64)


@pytest.fixture(scope="module")
def seen() -> np.ndarray:
    """[200, 3]: what a worker's environment observed in so many steps."""
    observations = []
    with EnvPool(GymnasiumSource(LeavesCycles), PoolShape(1, 1, 1, 1, 10, 2)) as pool:
        pool.start([GymnasiumReset((0,))])
        for _ in range(200):
            assert pool.wait_ready(20.0) == [0]
            sequence, t = pool.position(0)
            observations.append(np.array(pool.views[sequence % 2].observation[t, 0], np.float64))
            pool.next_action(0)[...] = 0
            pool.post_actions(0)
            if (full := pool.acquire(0.0)) is not None:
                pool.release(full)
    return np.stack(observations)


@pytest.mark.slow
def test_worker_collects_garbage_after_many_objects(seen: np.ndarray) -> None:
    assert seen[-1, 1] > 10_000
    assert seen[:40, 0].max() > 20 * CYCLES_A_STEP


def test_worker_frees_reference_cycles(seen: np.ndarray) -> None:
    assert seen[:, 0].max() < 100 * CYCLES_A_STEP  # of the 200 steps' 200,000
    assert np.diff(seen[:, 0]).min() < 0


def test_worker_freezes_objects_before_the_first_step(seen: np.ndarray) -> None:
    assert seen[-1, 2] > 100
