"""Native vector environments in a worker: one process, all rows in one lane, beside a driver."""

import numpy as np
import pytest

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.protocol import EpisodeReset, first_rows, step_rows
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from jaxsrl.bench.pool import PoolSizes, bench_pool

ROWS, STEPS = 5, 24
CONFIGS = {
    "gymnasium_vector": EnvConfig("CartPole-v1", suite="gymnasium_vector"),
    "envpool": EnvConfig("CartPole-v1", suite="envpool", kwargs='{"num_threads": 2}'),
    "ale_py": EnvConfig("ALE/Pong-v5", suite="atari_vector", kwargs='{"max_frames": 40, "num_threads": 2}'),
}


@pytest.mark.parametrize("package", CONFIGS)
def test_a_worker_steps_a_native_vector_as_this_process_does(package):
    if package != "gymnasium_vector":
        pytest.importorskip(package)
    source = CONFIGS[package].source()
    spec, shape = source.spec(), PoolShape(1, 1, 1, ROWS, STEPS, 2)
    reset = EpisodeReset((0,) * ROWS, (None,) * ROWS)
    actions = np.random.default_rng(0).integers(0, 2, (STEPS, ROWS)).astype(np.int32)

    (ours,) = allocate_slots(make_layout(spec, PoolShape(1, 1, 1, ROWS, STEPS, 1), {}))
    rows = source.make_rows(range(ROWS), 3, False)
    step_rows(ours, slice(0, STEPS)).prepare()
    rows.reset(reset, first_rows(ours))
    for t in range(STEPS):
        rows.step(actions[t], step_rows(ours, t))
    rows.close()

    with EnvPool(source, shape, PoolOptions(run_seed=3), spec=spec) as pool:
        pool.start([reset])
        for t in range(STEPS):
            assert pool.wait_ready(120.0) == [0]  # EnvPool takes long to import
            pool.views[0].action[t] = actions[t]
            pool.post_actions(0)
        assert pool.acquire(60.0) == 0
        theirs = pool.views[0]
        assert (~ours.valid).any()
        for name in ("observation", "is_first", "reward", "terminated", "truncated", "valid"):
            np.testing.assert_array_equal(getattr(theirs, name), getattr(ours, name))


@pytest.mark.slow
def test_a_native_vector_is_measured_against_itself_alone():
    result = bench_pool(PoolSizes(1, 4), suite="gymnasium_vector", seconds=0.2, rounds=2)
    assert set(result["rounds"]) == {"pool", "in_process", "native"}
    assert result["ratio_to_native"] > 0.0
    assert result["in_process_ratio_to_native"] > 0.0
    assert result["native_env_steps_per_second"] > 0.0
