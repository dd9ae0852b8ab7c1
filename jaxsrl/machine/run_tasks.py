"""Commands as processes of their own: in turn, or next to each other on cores of their own."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from envpool_bridge.errors import EnvPoolError, UserError
from envpool_bridge.limits import count_cores
from envpool_bridge.supervisor.forkserver import STOP_SIGNALS
from jaxsrl.machine.bound_command import bound_command
from jaxsrl.machine.lifecycle import REQUEUE_STATUS, exit_status, stop_on_signals

POLL_SECONDS = 0.2
_STOP_SECONDS = 300.0  # a run saves before it stops
_MOST_RESUMES = 5  # a configuration that needs too much memory is killed each time
_KILLED = {REQUEUE_STATUS, *(128 + number for number in STOP_SIGNALS)}


@dataclasses.dataclass(frozen=True)
class Task:
    """A command to run.

    Attributes:
        name: subject of the lines about it.
        command: program and arguments.
        output: file to which its output is appended; None for the terminal.
    """

    name: str
    command: Sequence[str]
    output: Path | None = None


class Process(Protocol):
    """A local process, or one on a node of a cluster."""

    def poll(self) -> int | None:
        """Returns its exit status, negative for a signal; None while it runs."""
        ...

    def send_signal(self, sig: int, /) -> None:
        """Sends a signal, unless it has ended."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit status. Raises subprocess.TimeoutExpired if it does not end within `timeout` seconds."""
        ...

    def kill(self) -> None:
        """Ends it at once."""
        ...


Start = Callable[[Task], Process]
"""Starts the process of a task, without waiting for it."""


def run_tasks(
    tasks: Sequence[Task],
    at_once: int,
    show: Callable[[str], None],
    poll_seconds: float = POLL_SECONDS,
    start: Start | None = None,
) -> int:
    """Runs commands; returns an exit status. No process remains.

    A stop signal is passed on to the processes. After a failed one the others stop in the same way. One that a signal ended starts
    again.

    Args:
        tasks: Tasks to run, in this order.
        at_once: processes at the same time. Those of this machine get equal parts of its cores.
        show: called with a line for each task that starts or ends.
        poll_seconds: Time between looks at the processes.
        start: starts a task; None for a process of this machine.

    Returns:
        0; the status of a task that failed; the status of the signal after a stop signal.

    Raises:
        UserError: `at_once` is below 1, or for processes of this machine above the number of its cores.
        EnvPoolError: If a process that `start` returned could not run; the others have stopped.
    """
    if at_once < 1 or (start is None and at_once > count_cores()):
        raise UserError(
            f"processes at the same time (--at-once): expected at least 1, and at most one for each of the {count_cores()} cores, "
            f"got {at_once}"
        )
    return _Processes(tasks, at_once, show, poll_seconds, start).run()


def start_here(task: Task) -> Process:
    """Starts a process of this machine."""
    with contextlib.ExitStack() as held:
        file = None if task.output is None else held.enter_context(open(task.output, "ab"))
        # A session of its own: a terminal's Ctrl-C reaches it only through this process.
        return subprocess.Popen(bound_command(task.command), stdout=file, stderr=file, start_new_session=True)


def stop_processes(processes: Sequence[Process], signal_name: str, show: Callable[[str], None]) -> None:
    """Sends a signal to processes, waits for their ends, and kills those that remain.

    Args:
        processes: Processes to stop.
        signal_name: signal.
        show: receives a line if they do not end in time.
    """
    try:
        for process in processes:
            process.send_signal(signal.Signals[signal_name])
        deadline = time.monotonic() + _STOP_SECONDS
        for process in processes:
            process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        show(f"processes did not stop within {_STOP_SECONDS:.0f} s and were killed")
    finally:
        for process in processes:
            process.kill()
            process.wait()


class ResumedProcess:
    """A process that starts again if a signal or a lost machine ended it: the command then resumes. Thread-safety: one thread.

    Args:
        task: Task, whose command is started.
        start: Function that starts the command.
        show: Function that is called with a line for each end by a signal.
        is_stopped: Function that returns whether it starts no more.
    """

    def __init__(self, task: Task, start: Start, show: Callable[[str], None], is_stopped: Callable[[], object]) -> None:
        self._task, self._start, self._show, self._is_stopped, self._resumes = task, start, show, is_stopped, 0
        self._cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
        self._process = start(task)

    def poll(self) -> int | None:
        """Returns the exit status; None while it runs or has just started again."""
        status = self._process.poll()
        if status is None or not (status < 0 or status in _KILLED):
            return status
        if self._resumes >= _MOST_RESUMES or self._is_stopped():
            return status
        self._resumes += 1
        self._show(
            f"{self._task.name} ended by a signal or a lost machine (exit status {status}): resume {self._resumes} of at most "
            f"{_MOST_RESUMES}"
        )
        with _only_cores(self._cores):
            self._process = self._start(self._task)
        return None

    def send_signal(self, sig: int, /) -> None:
        """Sends a signal, unless it has ended."""
        self._process.send_signal(sig)

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit status. Raises subprocess.TimeoutExpired if it does not end within `timeout` seconds."""
        return self._process.wait(timeout)

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()


class _Processes:
    """Processes of the tasks. Thread-safety: the main thread."""

    def __init__(
        self,
        tasks: Sequence[Task],
        at_once: int,
        show: Callable[[str], None],
        poll_seconds: float,
        start_elsewhere: Start | None,
    ) -> None:
        self._waiting, self._show, self._poll_seconds = list(tasks), show, poll_seconds
        self._start_elsewhere, at_once = start_elsewhere, min(at_once, len(self._waiting))
        self._cores = [set[int]() for _ in range(at_once)] if start_elsewhere else _divide_cores(at_once)
        self._running: dict[str, tuple[Process, set[int]]] = {}
        # No threading.Event: a signal's handler would wait forever for a lock that the code below it holds.
        self._is_stopped = False
        self._signal = ""
        self._status = 0
        self._error: EnvPoolError | None = None

    def run(self) -> int:
        """Runs all tasks to their ends."""
        with stop_on_signals(self._request_stop):
            try:
                while not self._is_stopped and (self._waiting or self._running):
                    while self._waiting and self._cores:
                        self._start(self._waiting.pop(0), self._cores.pop(0))
                    time.sleep(self._poll_seconds)
                    self._collect()
            finally:
                stop_processes(
                    [process for process, _ in self._running.values()], self._signal or "SIGTERM", self._show
                )
        if self._error is not None:
            raise self._error
        return exit_status(self._signal) if self._signal else self._status

    def _request_stop(self, signal_name: str) -> None:
        self._signal, self._is_stopped = signal_name, True

    def _start(self, task: Task, cores: set[int]) -> None:
        start = self._start_elsewhere or start_here
        with _only_cores(cores):
            self._running[task.name] = ResumedProcess(task, start, self._show, lambda: self._signal), cores
        self._show(f"{task.name} starts" + (f": see {task.output}" if task.output else ""))

    def _collect(self) -> None:
        """Removes processes that have ended; after a failure, stops the others."""
        for name, (process, cores) in list(self._running.items()):
            try:
                status = process.poll()
            except EnvPoolError as error:
                self._error, status = self._error or (None if self._signal else error), 1
            if status is None or self._signal:  # a stopped task is run again later
                continue
            del self._running[name]
            self._cores.append(cores)
            self._show(f"{name} is complete" if status == 0 else f"{name} ended with exit status {status}")
            if status != 0:
                self._status = status if status > 0 else 128 - status
                self._is_stopped = True


def _divide_cores(num_parts: int) -> list[set[int]]:
    """Returns the cores of this process in parts; an empty set where the system has no affinity (macOS)."""
    if not hasattr(os, "sched_getaffinity"):
        return [set() for _ in range(num_parts)]
    cores = sorted(os.sched_getaffinity(0))
    return [set(cores[part::num_parts]) for part in range(num_parts)]


@contextlib.contextmanager
def _only_cores(cores: set[int]) -> Iterator[None]:
    """Gives processes that start inside only these cores."""
    if not cores or cores == os.sched_getaffinity(0):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
