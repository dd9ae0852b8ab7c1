"""Environments that only sleep and communicate with no process: the machine's own limit on rows / sleep.

`run_module` runs this file in a process without threads, which forks.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Sequence
from functools import partial
from operator import call
from typing import Any, Literal

from envpool_bridge.envs.concurrent_step import ThreadedStep, make_concurrent_step
from envpool_bridge.envs.probes.sleep import Sleep
from envpool_bridge.supervisor.forkserver import kill_on_parent_exit
from envpool_bridge.worker.process_tuning import wake_on_time
from jaxsrl.bench.processes import answer_settings, run_module

Waiting = Literal["apart", "together", "async"]
_SECONDS_TO_START = 1.0
_LIMIT_SECONDS = 60.0


def bare_rows(rows: int, processes: int, milliseconds: float, seconds: float, waiting: Waiting = "apart") -> float:
    """Returns steps per second of all rows, each of which only sleeps.

    Args:
        rows: Rows in all; a multiple of `processes`.
        processes: number of processes that share the rows.
        milliseconds: Milliseconds of sleep per step.
        seconds: Seconds of measurement.
        waiting: "apart" gives each row a thread that continues at once. "together" has the same threads, but the rows of a process
            wait for each other after every step, as one inference call for all of them requires. "async" is like "together", but
            starts all steps and then waits for them, without threads.

    Raises:
        RuntimeError: If the process failed or took too long.
    """
    settings = {
        "rows": rows,
        "processes": processes,
        "milliseconds": milliseconds,
        "seconds": seconds,
        "waiting": waiting,
    }
    return float(run_module("jaxsrl.bench.bare_sleep", settings, _LIMIT_SECONDS + seconds))


def _measure(rows: int, processes: int, milliseconds: float, seconds: float, waiting: Waiting) -> float:
    context = multiprocessing.get_context("fork")
    counted = context.SimpleQueue()
    start = time.monotonic() + _SECONDS_TO_START + 0.005 * processes
    window = start, start + seconds
    step = {"apart": _step_apart, "together": _step_together, "async": _step_async}[waiting]
    arguments = rows // processes, milliseconds / 1000, window
    started = [
        context.Process(target=_process, args=(os.getpid(), counted, step, index, *arguments), daemon=True)
        for index in range(processes)
    ]
    for process in started:
        process.start()
    steps = sum(counted.get() for _ in started)
    for process in started:
        process.join()
    return steps / seconds


def _process(
    parent: int, counted: Any, step: Any, index: int, rows: int, sleep: float, window: tuple[float, float]
) -> None:
    kill_on_parent_exit(parent)
    wake_on_time()  # as workers do
    counted.put(step(index, rows, sleep, window))


def _step_apart(index: int, rows: int, sleep: float, window: tuple[float, float]) -> int:
    counts = [0] * rows

    def run(row: int) -> None:
        while (now := time.monotonic()) < window[1]:
            counts[row] += now >= window[0]
            time.sleep(sleep)

    threads = [threading.Thread(target=run, args=(row,)) for row in range(rows)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def _step_together(index: int, rows: int, sleep: float, window: tuple[float, float]) -> int:
    steps, count = ThreadedStep(rows, index), 0
    functions: Sequence[Any] = [time.sleep] * rows
    while (now := time.monotonic()) < window[1]:
        count += now >= window[0]
        steps(functions, [sleep] * rows)
    steps.close()
    return count * rows


def _step_async(index: int, rows: int, sleep: float, window: tuple[float, float]) -> int:
    del index
    envs, count = [Sleep(1000 * sleep) for _ in range(rows)], 0
    functions: Sequence[Any] = [env.step for env in envs]
    call_all: Any = make_concurrent_step(envs, functions) or partial(map, call)  # a single row has no concurrent step
    while (now := time.monotonic()) < window[1]:
        count += now >= window[0]
        list(call_all(functions, [0] * rows))
    return count * rows


if __name__ == "__main__":
    answer_settings(_measure)
