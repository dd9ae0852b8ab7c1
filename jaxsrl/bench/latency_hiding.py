"""Benchmark on environments that sleep: whether the other components keep up, so that a step costs only the sleep.

The goal is rows / sleep, with every row always asleep. A worker's rows sleep concurrently: their steps are started together and
then waited for, or each row has a thread. Each size is reported with the machine's own limit for rows that only sleep. It is
less than rows / sleep, because the machine wakes late and every wake-up costs processor time.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any, Literal

from envpool_bridge.errors import UserError
from jaxsrl.bench.bare_sleep import bare_rows
from jaxsrl.bench.one_run import run_apart
from jaxsrl.machine.cpu_latency import disable_cpu_idle

Steps = Literal["async", "threads"]
_KEEPS_UP = 0.9
_MIN_UPDATES = 12


@dataclasses.dataclass(frozen=True)
class SleepBench:
    """Settings of the benchmark.

    Attributes:
        milliseconds: of sleep per step.
        rows: environments of the largest run.
        fewer_rows: further numbers of rows, to find the bottleneck.
        divisions: (workers, lanes) over which rows are divided; all that divide the rows are measured.
        seconds: of each run, if only sleep took time.
        limit_seconds: of each measurement of rows that only sleep.
        steps: concurrency of a worker's rows: "async" (all steps are started, then waited for: `AsyncStep`), or "threads"
            (`EnvConfig.overlap_rows`).
        awake: whether CPU idle states are disabled, also for the limits (`--machine.disable-cpu-idle`).
    """

    milliseconds: float = 5.0
    rows: int = 256
    fewer_rows: Sequence[int] = (16, 32, 64, 128)
    divisions: Sequence[tuple[int, int]] = ((1, 1), (2, 2), (4, 4), (8, 4))
    seconds: float = 8.0
    limit_seconds: float = 3.0
    steps: Steps = "async"
    awake: bool = False

    def __post_init__(self) -> None:
        if self.milliseconds <= 0:
            raise UserError(f"milliseconds must be positive: got {self.milliseconds}")
        for workers, lanes in self.divisions:
            if workers < 1 or lanes < 1 or workers % lanes:
                raise UserError(f"lanes must divide workers: got {lanes} and {workers}")
        for rows in (*self.fewer_rows, self.rows):
            if rows < 1 or not self.divisions_of(rows):
                raise UserError(f"rows must be positive and divide by one of the workers {self._workers}: got {rows}")

    @property
    def _workers(self) -> str:
        return ", ".join(str(workers) for workers, _ in self.divisions)

    def divisions_of(self, rows: int) -> list[tuple[int, int]]:
        """Returns the (workers, lanes) that divide N rows."""
        return [(workers, lanes) for workers, lanes in self.divisions if rows % workers == 0]


def bench_sleep(what: SleepBench) -> dict[str, Any]:
    """Measures the throughput of single_learner_fine relative to rows / sleep.

    Returns:
        runs: one entry per number of rows and division. by_rows: the fastest of each number of rows, with the limits, also relative
        to rows / sleep. `limit_apart`: rows that continue at once, the best of one process per row and of threads in one process
        per core. `limit_together`: in the run's workers, whose rows wait for each other after every step, with the run's `steps`.
        bottleneck_rows: the first number of rows whose ratio is below 0.9; None if there is none.

    Raises:
        UserError: the user may not disable CPU idle states.
    """
    with disable_cpu_idle() if what.awake else contextlib.nullcontext():
        return _bench(what)


def _bench(what: SleepBench) -> dict[str, Any]:
    runs: list[dict[str, Any]] = []
    by_rows: list[dict[str, Any]] = []
    for rows in sorted({*what.fewer_rows, what.rows}):
        tried = [_measure(what, rows, workers, lanes) for workers, lanes in what.divisions_of(rows)]
        best = max(tried, key=lambda entry: entry["ratio"])
        runs += tried
        by_rows.append({**best, **_limits(what, rows, best["workers"])})
    return {
        "milliseconds": what.milliseconds,
        "steps": what.steps,
        "awake": what.awake,
        "runs": runs,
        "by_rows": by_rows,
        "bottleneck_rows": min((entry["rows"] for entry in by_rows if entry["ratio"] < _KEEPS_UP), default=None),
    }


def _limits(what: SleepBench, rows: int, workers: int) -> dict[str, float]:
    goal = rows / (what.milliseconds / 1000)
    cores = len(os.sched_getaffinity(0))
    apart = [
        bare_rows(rows, processes, what.milliseconds, what.limit_seconds)
        for processes in (rows, cores)
        if rows % processes == 0
    ]
    waiting = "async" if what.steps == "async" else "together"
    together = bare_rows(rows, workers, what.milliseconds, what.limit_seconds, waiting)
    return {"limit_apart": max(apart) / goal, "limit_together": together / goal}


def _measure(what: SleepBench, rows: int, workers: int, lanes: int) -> dict[str, Any]:
    goal = rows / (what.milliseconds / 1000)
    # Updates on slots that fill during compilation take no time: run enough updates that these do not matter.
    # PPO's four minibatches split the trajectory along time.
    steps_of_a_row = what.seconds * goal / rows
    rollout_length = next((steps for steps in (32, 16, 8) if steps_of_a_row >= _MIN_UPDATES * steps), 4)
    updates = max(_MIN_UPDATES, round(steps_of_a_row / rollout_length))
    is_async = what.steps == "async"
    kwargs = {"milliseconds": what.milliseconds, **({} if is_async else {"halves": False})}
    env = {"id": "Sleep", "suite": "probe", "kwargs": json.dumps(kwargs), "overlap_rows": not is_async}
    result = run_apart(
        {
            "workers": workers,
            "num_envs": rows,
            "env_steps": updates * rows * rollout_length,
            "env": env,
            "changes": {
                "pool.lanes_per_worker": 1,
                "pool.workers_per_lane": workers // lanes,
                "rollout_length": rollout_length,
            },
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
