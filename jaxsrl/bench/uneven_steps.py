"""Benchmark of environments whose steps take different times: asynchronous lanes against lockstep.

The limit is the same number of bare processes, each stepping one environment without communication. Contenders alternate in
short rounds, so drift of the machine's speed affects all of them.
"""

import contextlib
import statistics
from functools import partial
from typing import Any

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape
from jaxsrl.bench.pool import step_pool
from jaxsrl.bench.rivals.vector_envs import bare_processes
from jaxsrl.bench.turns import median_ratio, take_turns

_LENGTH, _SLOTS = 64, 4  # steps per slot; a row may be ahead of the slowest by the steps of all slots


def bench_uneven_steps(
    rows: int = 16, least: float = 1.0, most: float = 50.0, seconds: float = 20.0, rounds: int = 4
) -> dict[str, Any]:
    """Measures env steps per second of environments whose steps take different times: asynchronous lanes against lockstep.

    Args:
        rows: environments, one worker process each.
        least: minimum milliseconds per step.
        most: maximum milliseconds per step; each step sleeps for a new, uniformly distributed time.
        seconds: stepping time of each contender.
        rounds: turns over which the seconds are divided.

    Returns:
        Medians over rounds, and the medians of the rounds' ratios to the limit: `asynchronous_ratio` with one lane per row,
        `lockstep_ratio` with one lane of all rows.

    Raises:
        UserError: `most` is less than `least`, or bare processes made no step.
    """
    env = EnvConfig("Sleep", "probe", f'{{"milliseconds": {least}, "max_milliseconds": {most}}}')
    source = env.source()
    pool = partial(step_pool, source, source.spec())
    with contextlib.ExitStack() as stack:
        contenders = {
            "limit": stack.enter_context(bare_processes(env, rows, 1)),
            "asynchronous": stack.enter_context(pool(PoolShape(rows, 1, 1, 1, _LENGTH, _SLOTS))),
            "lockstep": stack.enter_context(pool(PoolShape(rows, 1, rows, 1, _LENGTH, _SLOTS))),
        }
        for stepper in contenders.values():
            stepper(0.2)
        results = take_turns({name: partial(step, seconds / rounds) for name, step in contenders.items()}, rounds)
    if min(results["limit"]) <= 0:
        raise UserError(f"bare processes made no step within {seconds / rounds:g} s: use more seconds, or fewer rounds")
    speeds = {f"{name}_env_steps_per_second": statistics.median(values) for name, values in results.items()}
    ratios = {f"{name}_ratio": median_ratio(results[name], results["limit"]) for name in ("asynchronous", "lockstep")}
    return {"rows": rows, "least_milliseconds": least, "most_milliseconds": most, **speeds, **ratios, "rounds": results}
