"""How fast the pool steps environments, against the physical limit and Gymnasium's vector environments, in one run.

The limit is the same number of bare processes, each stepping the same number of the same environments with random actions and
telling nobody. All contenders take turns in short rounds, so that a machine whose speed drifts drifts for all of them.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from envpool_bridge.adapters.environment import EnvConfig
from envpool_bridge.adapters.gymnasium_rows import GymnasiumSource
from envpool_bridge.adapters.rows import GymnasiumReset
from envpool_bridge.errors import UserError
from envpool_bridge.layout import PoolShape
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.specs import DiscreteSpec, EnvSpec

Stepper = Callable[[float], float]
"""Steps for so many seconds and returns env steps per second."""

_BARE = """
import json, random, sys, time
from envpool_bridge.adapters.environment import EnvConfig
config, count, worker = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
source = EnvConfig(**config).source()
envs = [source.make_env() for _ in range(count)]
for index, env in enumerate(envs):
    env.reset(seed=worker * count + index)
space = envs[0].action_space
actions = [space.sample() for _ in range(997)]
ended = [False] * count
steps = [env.step for env in envs]
print("ready", flush=True)
for line in sys.stdin:
    done, place, start = 0, 0, time.perf_counter()
    end = start + float(line)
    while time.perf_counter() < end:
        for index in range(count):
            if ended[index]:
                envs[index].reset()
                ended[index] = False
            else:
                place = (place + 1) % 997
                _, _, terminated, truncated, _ = steps[index](actions[place])
                ended[index] = terminated or truncated
        done += count
    print(done / (time.perf_counter() - start), flush=True)
"""


def bench_pool(
    env: EnvConfig, workers: int, envs_per_worker: int, seconds: float, lanes_per_worker: int = 1, rounds: int = 5
) -> dict[str, Any]:
    """Env steps per second of the pool, of the limit, and of SyncVectorEnv and AsyncVectorEnv with as many environments.

    Args:
        env: which environment; one `gymnasium.make` or a probe can make.
        workers: processes of the pool, and of the limit.
        envs_per_worker: environments each of them steps.
        seconds: that each contender steps in all.
        lanes_per_worker: of the pool. One, which all workers share, costs the fewest wake-ups; more hide the time that
            inference takes, of which random actions take none.
        rounds: turns that `seconds` are divided into.

    Returns:
        Medians over rounds, and ratios that are medians of the rounds' ratios.

    Raises:
        UserError: a number is not positive, or does not divide.
    """
    numbers = {"workers": workers, "envs_per_worker": envs_per_worker, "lanes_per_worker": lanes_per_worker}
    for name, value in {**numbers, "rounds": rounds, "seconds": seconds}.items():
        if value <= 0:
            raise UserError(f"{name} must be positive: got {value}")
    source = env.source()
    if not isinstance(source, GymnasiumSource):
        raise UserError(f"bench pool needs an environment made one by one: suite {env.suite!r} makes whole vectors")
    if envs_per_worker % lanes_per_worker:
        raise UserError(
            f"envs_per_worker must divide by lanes_per_worker: got {envs_per_worker} and {lanes_per_worker}"
        )
    spec, total = source.spec(), workers * envs_per_worker
    shape = PoolShape(workers, lanes_per_worker, workers, envs_per_worker // lanes_per_worker, 32, 3)
    names = ("pool", "limit", "sync_vector_env", "async_vector_env")
    results: dict[str, list[float]] = {name: [] for name in names}
    with contextlib.ExitStack() as stack:
        vector_of = [source.make_env] * total
        contenders: dict[str, Stepper] = {
            "pool": stack.enter_context(_pool(source, spec, shape)),
            "limit": stack.enter_context(_bare_processes(env, workers, envs_per_worker)),
            "sync_vector_env": stack.enter_context(_vector(SyncVectorEnv(vector_of))),
            "async_vector_env": stack.enter_context(_vector(AsyncVectorEnv(vector_of))),
        }
        for stepper in contenders.values():
            stepper(min(0.3, seconds / rounds))  # caches, clocks
        for _ in range(rounds):
            for name, stepper in contenders.items():
                results[name].append(stepper(seconds / rounds))
    return _report(env, spec, results, workers, envs_per_worker, lanes_per_worker)


def _report(
    env: EnvConfig, spec: EnvSpec, results: dict[str, list[float]], workers: int, envs_per_worker: int, lanes: int
) -> dict[str, Any]:
    def ratio(below: str) -> float:
        return statistics.median(a / b for a, b in zip(results["pool"], results[below], strict=True))

    speed = {name: statistics.median(values) for name, values in results.items()}
    return {
        "env_id": env.id,
        "workers": workers,
        "envs_per_worker": envs_per_worker,
        "lanes_per_worker": lanes,
        "env_steps_per_second": speed["pool"],
        "frames_per_second": speed["pool"] * spec.action_repeat,
        "limit_env_steps_per_second": speed["limit"],
        "sync_vector_env_steps_per_second": speed["sync_vector_env"],
        "async_vector_env_steps_per_second": speed["async_vector_env"],
        "ratio_to_limit": ratio("limit"),
        "ratio_to_sync_vector_env": ratio("sync_vector_env"),
        "ratio_to_async_vector_env": ratio("async_vector_env"),
        "rounds": results,
    }


@contextlib.contextmanager
def _pool(source: GymnasiumSource, spec: EnvSpec, shape: PoolShape) -> Iterator[Stepper]:
    rng = np.random.default_rng(0)
    actions = _random_actions(spec, rng, (97, shape.rows_per_lane))
    # One core a worker where there are as many: a process that spins on the other core would else keep two workers on one.
    cores = tuple(range(shape.num_workers)) if shape.num_workers == len(os.sched_getaffinity(0)) else ()
    with EnvPool(source, shape, PoolOptions(cores=cores), spec=spec) as pool:
        rows = [range(part.start, part.stop) for part in map(shape.part_rows, range(shape.num_parts))]
        pool.start([GymnasiumReset(tuple(part)) for part in rows])

        def step(seconds: float) -> float:
            done, turn, start = 0, 0, time.perf_counter()
            end = start + seconds
            while time.perf_counter() < end:
                for lane in pool.wait_ready(1.0):
                    sequence, t = pool.position(lane)
                    turn = (turn + 1) % 97
                    pool.views[sequence % shape.num_slots].action[t, shape.lane_rows(lane)] = actions[turn]
                    pool.post_actions(lane)
                    done += shape.rows_per_lane
                    if t == 0:  # now and then: whatever is full is done with
                        full = pool.acquire(0.0)
                        if full is not None:
                            pool.release(full)
            return done / (time.perf_counter() - start)

        yield step


@contextlib.contextmanager
def _bare_processes(env: EnvConfig, workers: int, envs_per_worker: int) -> Iterator[Stepper]:
    import dataclasses
    import json

    config = json.dumps(dataclasses.asdict(env))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _BARE, config, str(envs_per_worker), str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for worker in range(workers)
    ]

    def ask(line: str | None) -> list[str]:
        for process in processes:
            if line is not None and process.stdin is not None:
                process.stdin.write(line)
                process.stdin.flush()
        return [process.stdout.readline() if process.stdout is not None else "" for process in processes]

    try:
        ask(None)
        yield lambda seconds: sum(float(line) for line in ask(f"{seconds}\n"))
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def _vector(env: VectorEnv) -> Iterator[Stepper]:
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(97)]

    def step(seconds: float) -> float:
        done, start = 0, time.perf_counter()
        while time.perf_counter() < start + seconds:
            env.step(actions[done % 97])
            done += 1
        return done * env.num_envs / (time.perf_counter() - start)

    try:
        yield step
    finally:
        env.close()


def _random_actions(spec: EnvSpec, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    if isinstance(spec.action, DiscreteSpec):
        return rng.integers(0, spec.action.num_values, shape).astype(np.int32)
    low, high = spec.action.bound("low"), spec.action.bound("high")
    full = (*shape, *spec.action.shape)
    if low is None or high is None:
        return rng.standard_normal(full).astype(np.float32)
    return rng.uniform(low, high, full).astype(np.float32)
