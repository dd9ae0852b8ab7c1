"""Benchmark of the pool against the physical limit and other vector environments, in one run.

The limit is the same number of bare processes. Each steps the same number of the same environments with random actions, without
communication. For a native vector environment (suites "envpool", "atari_vector", "gymnasium_vector") it is the same vector
alone in one process. For several agents, whose rows are agents, as many processes step their rows without a pool.
Contenders alternate in short rounds, so drift of the machine's speed affects all of them. Their order is
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

from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from envpool_bridge.envs.config import EnvConfig, Suite
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.protocol import EnvSource, GymnasiumReset, first_rows, step_rows
from envpool_bridge.envs.vector_env import VectorSource
from envpool_bridge.errors import UserError
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import SlotAccess, allocate_slots
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import take, write
from envpool_bridge.vector_env import PoolVectorEnv
from jaxsrl.bench.processes import in_own_process
from jaxsrl.bench.random_actions import random_actions
from jaxsrl.bench.rivals.vector_envs import (
    Stepper,
    bare_processes,
    gymnasium_vector,
    installed_rivals,
    run_competing_processes,
)
from jaxsrl.bench.turns import median_ratio, take_turns

_ROLLOUT_LENGTH, _NUM_SLOTS = 32, 3
_START_SECONDS = 60.0
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

    def make_shape(self, rows_per_env: int = 1) -> PoolShape:
        """Returns the shape of the pool; raises UserError if the lanes do not divide a worker's environments."""
        lanes, envs = self.lanes_per_worker, self.envs_per_worker
        if envs % lanes:
            raise UserError(f"envs_per_worker must divide by lanes_per_worker: got {envs} and {lanes}")
        workers_per_lane = self.workers_per_lane or self.workers
        return PoolShape(
            self.workers, lanes, workers_per_lane, envs // lanes * rows_per_env, _ROLLOUT_LENGTH, _NUM_SLOTS
        )


def bench_pool(
    sizes: PoolSizes,
    env: str = "CartPole-v1",
    suite: Suite = "auto",
    kwargs: str = "{}",
    competing_processes: int = 0,
    seconds: float = 5.0,
    rounds: int = 40,
) -> dict[str, Any]:
    """Measures env steps per second of the pool, its limit, and other vector environments of the same size.

    Environments that are made one by one are compared with bare processes, SyncVectorEnv, AsyncVectorEnv and, if installed,
    stable-baselines3's SubprocVecEnv and PufferLib's Multiprocessing. PoolVectorEnv and SyncVectorEnv run in the modes NEXT_STEP
    and SAME_STEP. A reset counts as an env step in both. With several agents, each agent's is one.
    A native vector environment (best with one worker) is compared with itself alone. So is "in_process": without workers,
    as the plan "serial" steps it.

    Args:
        sizes: numbers of processes and environments.
        env: environment id.
        suite: Suite, as in EnvConfig.
        kwargs: Arguments of the environment, as in EnvConfig.
        competing_processes: processes that compute all the time, as other users' work does.
        seconds: counted time of each contender; a fifth of it runs uncounted before.
        rounds: turns over which the seconds are divided. More turns average more of the machine's other load.

    Returns:
        Medians over rounds, and ratios that are medians of the rounds' ratios.

    Raises:
        UserError: If the sizes do not divide, or no processes step the environment.
    """
    config = EnvConfig(env, suite, kwargs).with_suite()
    source = config.source()
    spec = source.spec()
    shape = sizes.make_shape(spec.rows_per_env)
    with contextlib.ExitStack() as stack:
        contenders = _contenders(config, source, spec, shape)
        steppers = {name: stack.enter_context(contender) for name, contender in contenders.items()}
        stack.enter_context(run_competing_processes(competing_processes))
        for stepper in steppers.values():
            stepper(min(0.3, seconds / rounds))  # caches, clocks
        turns = {name: partial(_take_turn, stepper, seconds / rounds) for name, stepper in steppers.items()}
        results = take_turns(turns, rounds, random.Random(0).shuffle)
    settings = {**dataclasses.asdict(sizes), "competing_processes": competing_processes}
    settings |= {"kwargs": config.kwargs, "rows_per_env": spec.rows_per_env}
    return {"env_id": env, "suite": config.suite, **settings, **_summarize(results, spec), "rounds": results}


def _contenders(env: EnvConfig, source: EnvSource, spec: EnvSpec, shape: PoolShape) -> _Contenders:
    # A process with several pools would not let their workers spin.
    pool: _Contenders = {"pool": in_own_process("the pool", partial(step_pool, source, spec, shape))}
    total = shape.num_rows
    if isinstance(source, VectorSource):
        in_process = _in_this_process(source, spec, PoolShape(1, 1, 1, total, _ROLLOUT_LENGTH, _NUM_SLOTS))
        native = partial(gymnasium_vector, partial(source.make_vector_env, total))
        vector_alone = in_own_process(f"a process of {env.id} alone", native)
        return {**pool, "in_process": in_process, "native": vector_alone}
    if isinstance(source, ParallelSource):
        alone = PoolShape(1, 1, 1, total // shape.num_workers, _ROLLOUT_LENGTH, _NUM_SLOTS)
        step_alone = partial(_in_this_process, source, spec, alone)
        return {**pool, "limit": in_own_process(f"a process of {env.id} alone", step_alone, shape.num_workers)}
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


def _take_turn(step: Stepper, seconds: float) -> float:
    step(_UNCOUNTED * seconds)
    return step(seconds)


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
def step_pool(source: EnvSource, spec: EnvSpec, shape: PoolShape) -> Iterator[Stepper]:
    """Yields a pool whose lanes get random actions as soon as they are ready."""
    actions = random_actions(spec, shape.rows_per_lane)
    # One core per worker if there are enough: a process that spins on another core would otherwise keep two workers on one.
    pinned = isinstance(source, GymnasiumSource) and shape.num_workers == len(os.sched_getaffinity(0))
    cores = tuple(range(shape.num_workers)) if pinned else ()
    with EnvPool(source, shape, PoolOptions(cores=cores), spec=spec) as pool:
        # Counted over all rounds: slots are released as often as they are filled, for rounds of any length.
        turns = itertools.count(1)
        rows = [range(part.start, part.stop) for part in map(shape.part_rows, range(shape.num_parts))]
        pool.start([GymnasiumReset(tuple(part)) for part in rows])
        pool.wait_started(_START_SECONDS)

        def step(seconds: float) -> float:
            done, start = 0, time.perf_counter()
            end = start + seconds
            while time.perf_counter() < end:
                for lane in pool.wait_ready(1.0):
                    turn = next(turns)
                    write(pool.next_action(lane), actions[turn % len(actions)])
                    pool.post_actions(lane)
                    done += shape.rows_per_lane
                    if turn % _ROLLOUT_LENGTH == 0:  # now and then, all full slots
                        while (full := pool.acquire(0.0)) is not None:
                            pool.release(full)
            return done / (time.perf_counter() - start)

        yield step


@contextlib.contextmanager
def _in_this_process(source: EnvSource, spec: EnvSpec, shape: PoolShape) -> Iterator[Stepper]:
    """Yields all rows as one lane in slots of ordinary memory, as the plan "serial" has them, with random actions."""
    layout = make_layout(spec, shape, {})
    slots = allocate_slots(layout)
    access, length, everything = SlotAccess(layout), shape.rollout_length, slice(None)
    actions = random_actions(spec, shape.num_rows)
    rows = source.make_rows(range(shape.num_rows), None, False)
    first = first_rows(slots[0])
    rows.reset(GymnasiumReset(tuple(range(shape.num_rows))), first)
    first.begin_history()
    steps_done = 0

    def step(seconds: float) -> float:
        nonlocal steps_done
        before, start = steps_done, time.perf_counter()
        end = start + seconds
        while time.perf_counter() < end:
            sequence, t = divmod(steps_done, length)
            slot = slots[sequence % len(slots)]
            if t == 0:
                if sequence > 0:
                    access.carry(slots[(sequence - 1) % len(slots)], slot, everything)
                step_rows(slot, slice(0, length)).prepare()
            action = take(slot.action, t)
            write(action, actions[steps_done % len(actions)])
            rows.step(action, step_rows(slot, t))
            if t + 1 == length:
                rows.verify(take(slot.observation, slice(1, None)), slot.reward)
            steps_done += 1
        return (steps_done - before) * shape.num_rows / (time.perf_counter() - start)

    try:
        yield step
    finally:
        rows.close()
