"""Tasks that are started elsewhere: their number, ends by signals, and errors that come with a stop signal."""

import os
import signal
import threading

import pytest

from envpool_bridge.errors import EnvPoolError, UserError
from jaxsrl.machine.run_tasks import Task, run_tasks
from tests.support.signal_in_wait import InterruptingProcess, signal_in_a_wait


class Process:
    """Stands for a process: each poll takes the next entry, an exit status or an error; then it runs until a signal."""

    def __init__(self, *polls):
        self.polls, self.signals, self.is_killed = list(polls), [], False

    def poll(self):
        entry = self.polls.pop(0) if self.polls else None
        if isinstance(entry, Exception):
            raise entry
        return entry

    def send_signal(self, sig):
        self.signals.append(sig)

    def wait(self, timeout=None):
        return -15

    def kill(self):
        self.is_killed = True


TASKS = [Task("a", ["a"]), Task("b", ["b"])]


def test_no_tasks_at_once_are_rejected_elsewhere_too():
    with pytest.raises(UserError, match="expected at least 1"):
        # In a thread of its own: without the error the call never returns.
        _call(lambda: run_tasks(TASKS, 0, lambda line: None, start=lambda task: Process(0)))


def test_more_at_once_than_tasks_or_cores_start_once_each():
    names = []
    assert run_tasks(TASKS, 10_000, lambda line: None, 0.0, lambda task: names.append(task.name) or Process(0)) == 0
    assert names == ["a", "b"]


def test_a_signal_counts_more_than_an_error_after_it():
    processes = []

    def start(task):
        if processes:
            os.kill(os.getpid(), signal.SIGTERM)
        processes.append(Process(EnvPoolError("no room")))
        return processes[-1]

    assert run_tasks(TASKS, 2, lambda line: None, 0.0, start) == 128 + signal.SIGTERM
    assert [process.signals for process in processes] == [[signal.SIGTERM]] * 2
    assert all(process.is_killed for process in processes)


@pytest.mark.parametrize(
    ("ends", "status", "starts"),
    [
        ([-9, 75, 143, 0], 0, 4),  # killed, lost a machine, stopped
        ([1, 0], 1, 1),  # the configuration failed
        ([-9] * 7, 137, 6),  # killed each time, perhaps for its memory
    ],
)
def test_an_end_by_a_signal_is_no_failure(ends, status, starts):
    tasks, lines = [], []

    def start(task):
        tasks.append(task)
        return Process(ends[len(tasks) - 1])

    assert run_tasks(TASKS[:1], 1, lines.append, 0.0, start) == status
    assert tasks == TASKS[:1] * starts
    assert sum("ended by a signal or a lost machine" in line for line in lines) == starts - 1


def test_a_signal_during_a_wait_needs_no_lock():
    with signal_in_a_wait():
        status = run_tasks(TASKS, 2, lambda line: None, 0.01, lambda task: InterruptingProcess())
    assert status == 128 + signal.SIGTERM


def test_an_error_in_start_stops_those_that_run():
    processes = []

    def start(task):
        if processes:
            raise OSError("no more processes")
        processes.append(Process())
        return processes[0]

    with pytest.raises(OSError, match="no more"):
        run_tasks(TASKS, 2, lambda line: None, 0.0, start)
    assert processes[0].signals == [signal.SIGTERM]
    assert processes[0].is_killed


def _call(function):
    errors = []

    def body():
        try:
            function()
        except UserError as error:
            errors.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(2)
    if errors:
        raise errors[0]
