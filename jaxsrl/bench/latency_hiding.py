"""Benchmark on environments that sleep: whether the other components keep up, so that a step costs only the sleep.

The goal is rows / sleep, with every row always asleep. A worker's rows sleep concurrently: their steps are started together and
then waited for, or each row has a thread. Each size is reported with the machine's own limit for rows that only sleep. It is
less than rows / sleep, because the machine wakes late and every wake-up costs processor time.
"""

import contextlib
import json
import os
from typing import Any, Literal

from envpool_bridge.errors import UserError
from jaxsrl.bench.bare_sleep import bare_rows
from jaxsrl.bench.one_run import run_apart
from jaxsrl.machine.cpu_latency import disable_cpu_idle

Steps = Literal["async", "threads"]
_KEEPS_UP = 0.9
_MIN_UPDATES = 12


def bench_latency_hiding(
    milliseconds: float = 5.0,
    rows: int = 256,
    fewer_rows: tuple[int, ...] = (16, 32, 64, 128),
    divisions: tuple[tuple[int, int], ...] = ((1, 1), (2, 2), (4, 4), (8, 4)),
    seconds: float = 8.0,
    limit_seconds: float = 3.0,
    steps: Steps = "async",
    awake: bool = False,
) -> dict[str, Any]:
    """Measures training on environments that sleep: throughput of single_learner_fine relative to rows / sleep.

    Args:
        milliseconds: Milliseconds of sleep per step.
        rows: environments of the largest run.
        fewer_rows: further numbers of environments, to find the bottleneck.
        divisions: (workers, lanes) over which rows are divided; all that divide the rows are measured.
        seconds: Seconds of each run, if only sleep took time.
        limit_seconds: Limit, in seconds, of each measurement of rows that only sleep.
        steps: concurrency of a worker's rows: "async" (all steps are started, then waited for), or "threads".
        awake: disable CPU idle states meanwhile, also for the limits, as --machine.disable-cpu-idle does.

    Returns:
        runs: one entry per number of rows and division. by_rows: the fastest of each number of rows, with the limits, also relative
        to rows / sleep. `limit_apart`: rows that continue at once, the best of one process per row and of threads in one process
        per core. `limit_together`: in the run's workers, whose rows wait for each other after every step, with the run's `steps`.
        bottleneck_rows: the first number of rows whose ratio is below 0.9; None if there is none.

    Raises:
        UserError: rows cannot be divided, or the user may not disable CPU idle states.
    """
    divisions_by_rows = {count: _divide(count, divisions) for count in sorted({*fewer_rows, rows})}
    runs: list[dict[str, Any]] = []
    by_rows: list[dict[str, Any]] = []
    with disable_cpu_idle() if awake else contextlib.nullcontext():
        for count, possible in divisions_by_rows.items():
            tried = [_measure(milliseconds, count, *division, seconds, steps) for division in possible]
            best = max(tried, key=lambda entry: entry["ratio"])
            runs += tried
            by_rows.append({**best, **_measure_limits(milliseconds, count, best["workers"], limit_seconds, steps)})
    return {
        "milliseconds": milliseconds,
        "steps": steps,
        "awake": awake,
        "runs": runs,
        "by_rows": by_rows,
        "bottleneck_rows": min((entry["rows"] for entry in by_rows if entry["ratio"] < _KEEPS_UP), default=None),
    }


def _divide(rows: int, divisions: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Returns the (workers, lanes) that divide the rows; raises UserError if there are none."""
    for workers, lanes in divisions:
        if workers % lanes:
            raise UserError(f"lanes must divide workers: got {lanes} and {workers}")
    possible = [(workers, lanes) for workers, lanes in divisions if rows % workers == 0]
    if not possible:
        known = ", ".join(str(workers) for workers, _ in divisions)
        raise UserError(f"rows must divide by one of the workers {known}: got {rows}")
    return possible


def _measure_limits(milliseconds: float, rows: int, workers: int, seconds: float, steps: Steps) -> dict[str, float]:
    goal = rows / (milliseconds / 1000)
    numbers = [number for number in (rows, len(os.sched_getaffinity(0))) if rows % number == 0]
    apart = max(bare_rows(rows, processes, milliseconds, seconds) for processes in numbers)
    together = bare_rows(rows, workers, milliseconds, seconds, "async" if steps == "async" else "together")
    return {"limit_apart": apart / goal, "limit_together": together / goal}


def _measure(milliseconds: float, rows: int, workers: int, lanes: int, seconds: float, steps: Steps) -> dict[str, Any]:
    goal = rows / (milliseconds / 1000)
    # Updates on slots that fill during compilation take no time: run enough updates that these do not matter.
    # PPO's four minibatches split the trajectory along time.
    steps_per_row = seconds * goal / rows
    rollout_length = next((length for length in (32, 16, 8) if steps_per_row >= _MIN_UPDATES * length), 4)
    updates = max(_MIN_UPDATES, round(steps_per_row / rollout_length))
    is_async = steps == "async"
    kwargs = {"milliseconds": milliseconds, **({} if is_async else {"halves": False})}
    lane_options = {"pool.lanes_per_worker": 1, "pool.workers_per_lane": workers // lanes}
    result = run_apart(
        {
            "workers": workers,
            "num_envs": rows,
            "env_steps": updates * rows * rollout_length,
            "env": {"id": "Sleep", "suite": "probe", "kwargs": json.dumps(kwargs), "overlap_rows": not is_async},
            "changes": {**lane_options, "rollout_length": rollout_length},
        }
    )
    speed = result["env_steps_per_second"]
    return {
        "rows": rows,
        "workers": workers,
        "lanes": lanes,
        "env_steps_per_second": speed,
        "ratio": speed / goal,
        "inference_latency_ms": result["inference_latency_ms"],
        "learner_idle_share": result["learner_idle_share"],
    }
