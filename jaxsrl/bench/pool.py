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
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from envpool_bridge.envs.config import EnvConfig, Suite
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.protocol import EnvSource, GymnasiumReset
from envpool_bridge.envs.vector_env import VectorSource
from envpool_bridge.errors import UserError
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import take, write
from envpool_bridge.vector_env import PoolVectorEnv
from jaxsrl.bench.in_process import in_this_process
from jaxsrl.bench.processes import in_own_process
from jaxsrl.bench.random_actions import random_actions
from jaxsrl.bench.rivals.vector_envs import (
    Stepper,
    bare_processes,
    gymnasium_vector,
    installed_rivals,
    native_alone,
    run_competing_processes,
)
from jaxsrl.bench.turns import median_ratio

_ROLLOUT_LENGTH, _NUM_SLOTS = 32, 3
# Share of a turn: caches have the former contender's data, and hundreds of its processes may just be going to sleep.
_UNCOUNTED = 0.2
_Contenders = dict[str, contextlib.AbstractContextManager[Stepper]]


@dataclasses.dataclass(frozen=True)
class PoolSizes:
    """Sizes of the pool and its contenders.

    Attributes:
        workers: processes of the pool, and of the limit.
        envs_per_worker: environments per worker.
        lanes_per_worker: lanes that each worker alternates between. One needs the fewest wake-ups. More hide inference time, which
            random actions do not have.
        workers_per_lane: workers that share a lane and wait for each other; 0 for all of them. With 1, each continues as soon as
            its own rows have actions, which pays off if rounds are long or cores unequally fast.
    """

    workers: int = 2
    envs_per_worker: int = 64
    lanes_per_worker: int = 1
    workers_per_lane: int = 0

    def make_shape(self) -> PoolShape:
        """Returns the shape of the pool; raises UserError if the lanes do not divide a worker's environments."""
        lanes, envs = self.lanes_per_worker, self.envs_per_worker
        if envs % lanes:
            raise UserError(f"envs_per_worker must divide by lanes_per_worker: got {envs} and {lanes}")
        workers_per_lane = self.workers_per_lane or self.workers
        return PoolShape(self.workers, lanes, workers_per_lane, envs // lanes, _ROLLOUT_LENGTH, _NUM_SLOTS)


def bench_pool(
    sizes: PoolSizes,
    env: str = "CartPole-v1",
    suite: Suite = "auto",
    competing_processes: int = 0,
    seconds: float = 5.0,
    rounds: int = 40,
) -> dict[str, Any]:
    """Measures env steps per second of the pool, its limit, and other vector environments of the same size.

    Environments that are made one by one are compared with bare processes, SyncVectorEnv, AsyncVectorEnv and, if installed,
    stable-baselines3's SubprocVecEnv and PufferLib's Multiprocessing. PoolVectorEnv and SyncVectorEnv run in the modes NEXT_STEP
    and SAME_STEP. A reset counts as an env step in both. A native vector environment (best with one worker) is compared with
    itself alone. So is "in_process": without workers, as the plan "serial" steps it.

    Args:
        sizes: numbers of processes and environments.
        env: environment id.
        suite: as in EnvConfig.
        competing_processes: processes that compute all the time, as other users' work does.
        seconds: counted time of each contender; a fifth of it runs uncounted before.
        rounds: turns over which the seconds are divided. More turns average more of the machine's other load.

    Returns:
        Medians over rounds, and ratios that are medians of the rounds' ratios.

    Raises:
        UserError: the sizes do not divide, or no processes step the environment.
    """
    shape = sizes.make_shape()
    config = EnvConfig(env, suite=suite).with_suite()
    source = config.source()
    spec = source.spec()
    with contextlib.ExitStack() as stack:
        contenders = _contenders(config, source, spec, shape)
        steppers = {name: stack.enter_context(contender) for name, contender in contenders.items()}
        stack.enter_context(run_competing_processes(competing_processes))
        for stepper in steppers.values():
            stepper(min(0.3, seconds / rounds))  # caches, clocks
        turn, order, shuffle = seconds / rounds, list(steppers), random.Random(0).shuffle
        results: dict[str, list[float]] = {name: [] for name in steppers}
        for _ in range(rounds):
            shuffle(order)
            for name in order:
                steppers[name](_UNCOUNTED * turn)
                results[name].append(steppers[name](turn))
    settings = {**dataclasses.asdict(sizes), "competing_processes": competing_processes}
    return {"env_id": env, "suite": config.suite, **settings, **_summarize(results, spec), "rounds": results}


def _contenders(env: EnvConfig, source: EnvSource, spec: EnvSpec, shape: PoolShape) -> _Contenders:
    # A process with several pools would not let their workers spin.
    pool: _Contenders = {"pool": in_own_process("the pool", partial(_pool, source, spec, shape))}
    total = shape.num_rows
    if isinstance(source, VectorSource):
        in_process = in_this_process(source, spec, PoolShape(1, 1, 1, total, _ROLLOUT_LENGTH, _NUM_SLOTS))
        return {**pool, "in_process": in_process, "native": native_alone(env, total)}
    if not isinstance(source, GymnasiumSource):
        raise UserError(f"bench pool needs an environment that processes step: got suite {env.suite!r}")
    make_envs = [source.make_env] * total
    vector = partial(PoolVectorEnv, make_envs, num_workers=shape.num_workers)
    same_step = partial(vector, autoreset_mode=AutoresetMode.SAME_STEP)
    return {
        **pool,
        "limit": bare_processes(env, shape.num_workers, total // shape.num_workers),
        "pool_vector_env": in_own_process("PoolVectorEnv", partial(gymnasium_vector, vector)),
        "pool_same_step": in_own_process("PoolVectorEnv in mode SAME_STEP", partial(gymnasium_vector, same_step)),
        "sync_vector_env": gymnasium_vector(partial(SyncVectorEnv, make_envs)),
        "sync_same_step": gymnasium_vector(partial(SyncVectorEnv, make_envs, autoreset_mode=AutoresetMode.SAME_STEP)),
        "async_vector_env": gymnasium_vector(partial(AsyncVectorEnv, make_envs)),
        **installed_rivals(source.make_env, shape.num_workers, total),
    }


def _summarize(results: dict[str, list[float]], spec: EnvSpec) -> dict[str, float]:
    """Returns the medians of speeds and ratios."""
    speeds = {name: statistics.median(values) for name, values in results.items()}
    rivals = [name for name in results if name != "pool"]
    for name in rivals:
        if min(results[name]) <= 0:
            raise UserError(f"{name} made no step in one of its turns: use more seconds, or fewer rounds")
    ratios = {f"ratio_to_{name}": median_ratio(results["pool"], results[name]) for name in rivals}
    for name in ("pool", "sync"):
        if f"{name}_same_step" in results:
            ratio = median_ratio(results[f"{name}_same_step"], results[f"{name}_vector_env"])
            ratios[f"{name}_same_step_ratio_to_next_step"] = ratio
    if "in_process" in results:
        ratios["in_process_ratio_to_native"] = median_ratio(results["in_process"], results["native"])
    return {
        "env_steps_per_second": speeds["pool"],
        "frames_per_second": speeds["pool"] * spec.action_repeat,
        **{f"{name.removesuffix('_env')}_env_steps_per_second": speeds[name] for name in rivals},
        **ratios,
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
