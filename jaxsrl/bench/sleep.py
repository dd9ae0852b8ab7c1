"""Environments that sleep: whether the parts around them keep up, so that a step costs the sleep and nothing more.

The limit is rows / sleep: every row sleeping all the time. A worker's rows sleep one after another, so only as many rows as there
are workers can sleep at once; what is missing then is work for the server and the processor.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.bench.one_run import run_apart

_KEEPS_UP = 0.9
_MIN_UPDATES = 12


@dataclasses.dataclass(frozen=True)
class SleepBench:
    """What is measured.

    Attributes:
        milliseconds: of sleep a step.
        rows: environments in all, for growing numbers of workers.
        workers: numbers of worker processes to try.
        lanes: numbers of lanes that the workers are divided into; those that divide them.
        growing_rows: numbers of rows, with as many workers each: where the server becomes the bottleneck.
        seconds: of each run, if nothing but sleep took time.
    """

    milliseconds: float = 5.0
    rows: int = 256
    workers: Sequence[int] = (16, 64, 128, 256)
    lanes: Sequence[int] = (1, 4)
    growing_rows: Sequence[int] = (16, 32, 64, 128, 256)
    seconds: float = 8.0

    def __post_init__(self) -> None:
        if self.milliseconds <= 0:
            raise UserError(f"milliseconds must be positive: got {self.milliseconds}")
        for workers in self.workers:
            if workers < 1 or self.rows % workers:
                raise UserError(f"workers must divide the {self.rows} rows: got {workers}")


def bench_sleep(what: SleepBench) -> dict[str, Any]:
    """Throughput of single_learner_fine as a ratio of rows / sleep.

    Returns:
        by_workers: rows fixed, one entry a number of workers and lanes. by_rows: as many workers as rows, the best number of
        lanes. bottleneck_rows: the first number of rows whose ratio is below 0.9; None if there is none.
    """
    by_workers = [
        _measure(what, what.rows, workers, lanes)
        for workers in what.workers
        for lanes in what.lanes
        if workers % lanes == 0
    ]
    known = {entry["workers"]: entry for entry in _best(by_workers)}
    by_rows: list[dict[str, Any]] = []
    for rows in what.growing_rows:
        if rows == what.rows and rows in known:
            by_rows.append(known[rows])
            continue
        tried = [_measure(what, rows, rows, lanes) for lanes in what.lanes if rows % lanes == 0]
        by_rows += _best(tried)
    behind = [entry["rows"] for entry in by_rows if entry["ratio"] < _KEEPS_UP]
    return {
        "milliseconds": what.milliseconds,
        "by_workers": by_workers,
        "by_rows": by_rows,
        "bottleneck_rows": min(behind, default=None),
    }


def _best(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entry of the best number of lanes for each number of workers, in order."""
    best: dict[int, dict[str, Any]] = {}
    for entry in entries:
        held = best.get(entry["workers"])
        if held is None or entry["ratio"] > held["ratio"]:
            best[entry["workers"]] = entry
    return list(best.values())


def _measure(what: SleepBench, rows: int, workers: int, lanes: int) -> dict[str, Any]:
    limit = rows / (what.milliseconds / 1000)
    reachable = min(workers, rows) / (what.milliseconds / 1000)
    # Slots that fill while the first update compiles are learned from in no time: enough updates that these do not tell.
    # PPO's four minibatches cut the trajectory along time.
    steps_of_a_row = what.seconds * reachable / rows
    rollout_length = next((steps for steps in (32, 16, 8) if steps_of_a_row >= _MIN_UPDATES * steps), 4)
    updates = max(_MIN_UPDATES, round(steps_of_a_row / rollout_length))
    result = run_apart(
        {
            "workers": workers,
            "num_envs": rows,
            "env_steps": updates * rows * rollout_length,
            "env": {"id": "Sleep", "suite": "probe", "kwargs": json.dumps({"milliseconds": what.milliseconds})},
            "changes": {"lanes_per_worker": 1, "workers_per_lane": workers // lanes, "rollout_length": rollout_length},
        }
    )
    speed = result["env_steps_per_second"]
    return {
        "rows": rows,
        "workers": workers,
        "lanes": lanes,
        "env_steps_per_second": speed,
        "ratio": speed / limit,
        "ratio_to_workers": speed / reachable,
        "inference_latency_ms": result["inference_latency_ms"],
        "learner_idle_share": result["learner_idle_share"],
    }
