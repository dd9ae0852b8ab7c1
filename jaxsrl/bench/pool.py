"""Benchmark of the pool against the physical limit and other vector environments, in one run.

The limit is the same number of bare processes. Each steps the same number of the same environments with random actions, without
communication. For a native vector environment (suites "envpool", "atari_vector", "gymnasium_vector") it is the same vector
alone in one process. Contenders alternate in short rounds, so drift of the machine's speed affects all of them. Their order is
random in each round. The start of each turn is not counted.
"""

import contextlib
import dataclasses
import itertools
import os
import random
import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.protocol import EnvSource, GymnasiumReset
from envpool_bridge.envs.vector_env import VectorSource
from envpool_bridge.errors import UserError
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import take, write
from jaxsrl.bench.in_process import in_this_process
from jaxsrl.bench.random_actions import random_actions
from jaxsrl.bench.rivals.vector_envs import (
    Stepper,
    bare_processes,
    busy_processes,
    gymnasium_vector,
    installed_rivals,
    native_alone,
)

_ROLLOUT_LENGTH, _NUM_SLOTS = 32, 3
# Share of a turn: caches have the former contender's data, and hundreds of its processes may just be going to sleep.
_UNCOUNTED = 0.2
_Contenders = dict[str, contextlib.AbstractContextManager[Stepper]]


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """Sizes of the pool and its contenders."""

    workers: int
    envs_per_worker: int
    lanes_per_worker: int
    workers_per_lane: int

    def __post_init__(self) -> None:
        _validate_positive(**dataclasses.asdict(self))
        if self.envs_per_worker % self.lanes_per_worker:
            raise UserError(
                f"envs_per_worker must divide by lanes_per_worker: got {self.envs_per_worker} and {self.lanes_per_worker}"
            )

    @property
    def total(self) -> int:
        return self.workers * self.envs_per_worker

    @property
    def shape(self) -> PoolShape:
        rows_per_part = self.envs_per_worker // self.lanes_per_worker
        lanes = self.lanes_per_worker, self.workers_per_lane
        return PoolShape(self.workers, *lanes, rows_per_part, _ROLLOUT_LENGTH, _NUM_SLOTS)


def bench_pool(
    env: EnvConfig,
    workers: int,
    envs_per_worker: int,
    seconds: float,
    lanes_per_worker: int = 1,
    workers_per_lane: int = 0,
    rounds: int = 40,
    busy: int = 0,
) -> dict[str, Any]:
    """Measures env steps per second of the pool, its limit, and other vector environments of the same size.

    Args:
        env: environment. One that is made one by one is compared with bare processes, SyncVectorEnv, AsyncVectorEnv and, if
            installed, stable-baselines3's SubprocVecEnv and PufferLib's Multiprocessing. A native vector environment (best with
            one worker) is compared with itself alone. So is "in_process": without workers, as the plan "serial" steps it.
        workers: processes of the pool, and of the limit.
        envs_per_worker: environments of each of them.
        seconds: counted time of each contender; a fifth of it runs uncounted before.
        lanes_per_worker: of the pool. One needs the fewest wake-ups. More hide inference time, which random actions do not have.
        workers_per_lane: 0 for all of them: one call acts for all rows, and every worker waits for the slowest. With 1, each
            continues as soon as its own rows have actions, which pays off if rounds are long or cores unequally fast.
        rounds: turns over which `seconds` are divided; many short ones, because the speed of a machine drifts within seconds.
        busy: competing processes that compute all the time, as other users' work does.

    Returns:
        Medians over rounds, and ratios that are medians of the rounds' ratios.

    Raises:
        UserError: a number is not positive (`busy`: negative), or does not divide, or no processes step the environment.
    """
    sizes = _Sizes(workers, envs_per_worker, lanes_per_worker, workers_per_lane or workers)
    _validate_positive(rounds=rounds, seconds=seconds)
    if busy < 0:
        raise UserError(f"busy must be 0 or more processes: got {busy}")
    source = env.source()
    spec = source.spec()
    with contextlib.ExitStack() as stack:
        steppers = {
            name: stack.enter_context(contender) for name, contender in _contenders(env, source, spec, sizes).items()
        }
        stack.enter_context(busy_processes(busy))
        for stepper in steppers.values():
            stepper(min(0.3, seconds / rounds))  # caches, clocks
        turn, order, shuffle = seconds / rounds, list(steppers), random.Random(0).shuffle
        results: dict[str, list[float]] = {name: [] for name in steppers}
        for _ in range(rounds):
            shuffle(order)
            for name in order:
                steppers[name](_UNCOUNTED * turn)
                results[name].append(steppers[name](turn))
    return _report(env, spec, results, sizes, busy)


def _validate_positive(**values: float) -> None:
    for name, value in values.items():
        if value <= 0:
            raise UserError(f"{name} must be positive: got {value}")


def _contenders(env: EnvConfig, source: EnvSource, spec: EnvSpec, sizes: _Sizes) -> _Contenders:
    pool: _Contenders = {"pool": _pool(source, spec, sizes.shape)}
    if isinstance(source, VectorSource):
        in_process = in_this_process(source, spec, PoolShape(1, 1, 1, sizes.total, _ROLLOUT_LENGTH, _NUM_SLOTS))
        return {**pool, "in_process": in_process, "native": native_alone(env, sizes.total)}
    if not isinstance(source, GymnasiumSource):
        raise UserError(f"bench pool needs an environment that processes step: got suite {env.suite!r}")
    vector_of = [source.make_env] * sizes.total
    return {
        **pool,
        "limit": bare_processes(env, sizes.workers, sizes.envs_per_worker),
        "sync_vector_env": gymnasium_vector(partial(SyncVectorEnv, vector_of)),
        "async_vector_env": gymnasium_vector(partial(AsyncVectorEnv, vector_of)),
        **installed_rivals(source.make_env, sizes.workers, sizes.total),
    }


def _report(env: EnvConfig, spec: EnvSpec, results: dict[str, list[float]], sizes: _Sizes, busy: int) -> dict[str, Any]:
    speed = {name: statistics.median(values) for name, values in results.items()}
    rivals = [name for name in results if name != "pool"]
    for name in rivals:
        if min(results[name]) <= 0:
            raise UserError(f"{name} made no step in one of its turns: use more seconds, or fewer rounds")

    def ratio(above: str, below: str) -> float:
        return statistics.median(a / b for a, b in zip(results[above], results[below], strict=True))

    ratios = {f"ratio_to_{name}": ratio("pool", name) for name in rivals}
    if "in_process" in results:
        ratios["in_process_ratio_to_native"] = ratio("in_process", "native")
    speeds = {
        f"{name}_steps_per_second" if name.endswith("vector_env") else f"{name}_env_steps_per_second": speed[name]
        for name in rivals
    }
    return {
        "env_id": env.id,
        "suite": env.suite,
        **dataclasses.asdict(sizes),
        "busy": busy,
        "env_steps_per_second": speed["pool"],
        "frames_per_second": speed["pool"] * spec.action_repeat,
        **speeds,
        **ratios,
        "rounds": results,
    }


@contextlib.contextmanager
def _pool(source: EnvSource, spec: EnvSpec, shape: PoolShape) -> Iterator[Stepper]:
    rng = np.random.default_rng(0)
    drawn = random_actions(spec, rng, (97, shape.rows_per_lane))
    actions = [take(drawn, turn) for turn in range(97)]
    # One core per worker if there are enough: a process that spins on another core would otherwise keep two workers on one.
    pinned = isinstance(source, GymnasiumSource) and shape.num_workers == len(os.sched_getaffinity(0))
    cores = tuple(range(shape.num_workers)) if pinned else ()
    with EnvPool(source, shape, PoolOptions(cores=cores), spec=spec) as pool:
        # Counted over all rounds: slots are released as often as they are filled, for rounds of any length.
        turns = itertools.count(1)
        rows = [range(part.start, part.stop) for part in map(shape.part_rows, range(shape.num_parts))]
        pool.start([GymnasiumReset(tuple(part)) for part in rows])

        def step(seconds: float) -> float:
            done, start = 0, time.perf_counter()
            end = start + seconds
            while time.perf_counter() < end:
                for lane in pool.wait_ready(1.0):
                    turn = next(turns)
                    write(pool.next_action(lane), actions[turn % 97])
                    pool.post_actions(lane)
                    done += shape.rows_per_lane
                    if turn % _ROLLOUT_LENGTH == 0:  # now and then
                        _release_full(pool)
            return done / (time.perf_counter() - start)

        yield step


def _release_full(pool: EnvPool) -> None:
    """Releases all full slots."""
    while (full := pool.acquire(0.0)) is not None:
        pool.release(full)
