"""Training of the runs whose results are missing, one after another, each in a process of its own."""

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from envpool_bridge.errors import UserError
from jaxsrl.machine.bound_command import bound_command
from jaxsrl.machine.lifecycle import exit_status, stop_on_signals
from jaxsrl.machine.python_command import jaxsrl_command
from jaxsrl.results.record import make_result, write_result
from jaxsrl.results.task_list import TaskRuns

_POLL_SECONDS = 0.2
_STOP_SECONDS = 300.0  # a large replay buffer takes its time to save


def select_tasks(tasks: Sequence[TaskRuns], names: Sequence[str]) -> list[TaskRuns]:
    """Returns the entries whose task or settings have one of the names; all without names.

    Raises:
        UserError: If no entry has one of the names.
    """
    for name in names:
        if not any(name in (task.task, task.name) for task in tasks):
            known = dict.fromkeys(known for task in tasks for known in (task.task, task.name))
            raise UserError(f"no entry of the tasks is named {name!r}: expected one of {', '.join(known)}")
    return [task for task in tasks if not names or task.task in names or task.name in names]


def train_missing(
    tasks: Sequence[TaskRuns],
    results: Path,
    runs: Path,
    hours: float,
    show: Callable[[str], None],
    jaxsrl: Sequence[str] = (),
) -> int:
    """Trains each run without a result, resumes it if it was stopped, and records its result.

    A stop signal, or the end of the time, stops the training run, which saves first. The same call resumes it.

    Args:
        tasks: runs to train.
        results: directory of results.
        runs: directory of their run directories.
        hours: time for all; 0 for no limit.
        show: called with each line of progress.
        jaxsrl: start of the command line, in place of the command `jaxsrl`.

    Returns:
        0; 1 if a run failed or cannot be recorded; the status of the signal after a stop signal.
    """
    deadline = time.monotonic() + hours * 3600 if hours else None
    # No threading.Event: a signal's handler would wait forever for a lock that the code below it holds.
    stopped: list[str] = []
    failed = False
    with stop_on_signals(stopped.append):
        for task, seed in [(entry, seed) for entry in tasks for seed in range(entry.seeds)]:
            if task.has_result(seed, results):
                continue
            if stopped or _is_past(deadline):
                break
            name = task.run_name(seed)
            show(f"jaxsrl {' '.join(task.command(seed))}")
            local = ["--run.directory", str(runs), "--run.name", name]
            status = _run([*(jaxsrl or jaxsrl_command()), *task.command(seed), *local], deadline, stopped)
            if stopped or (status and _is_past(deadline)):
                break
            if status:
                failed = True
                show(f"{name} failed with exit status {status}")
                continue
            try:
                show(f"written to {_record(task, seed, runs / name, results)}")
            except UserError as error:
                failed = True
                show(f"{name} has no result: {error}")
    return exit_status(stopped[0]) if stopped else int(failed)


def _record(task: TaskRuns, seed: int, run: Path, results: Path) -> Path:
    result = make_result(run, task.name)
    if (result.task, result.seed) != (task.task, seed):
        raise UserError(f"{run} trained seed {result.seed} of {result.task}: expected seed {seed} of {task.task}")
    return write_result(result, results)


def _is_past(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def _run(command: Sequence[str], deadline: float | None, stopped: Sequence[str]) -> int:
    """Returns the exit status of a command, which is stopped by SIGTERM at the deadline or when `stopped` is not empty.

    The process has a session of its own: a terminal's Ctrl-C reaches it only through this process. It ends with this process.
    """
    process = subprocess.Popen(bound_command(command), start_new_session=True)
    try:
        while process.poll() is None:
            if stopped or _is_past(deadline):
                process.send_signal(signal.SIGTERM)
                return process.wait(_STOP_SECONDS)
            time.sleep(_POLL_SECONDS)
        return process.returncode
    except subprocess.TimeoutExpired as error:
        raise UserError(f"training did not stop within {_STOP_SECONDS:.0f} s and was killed: {error}") from error
    finally:
        process.kill()
        process.wait()
