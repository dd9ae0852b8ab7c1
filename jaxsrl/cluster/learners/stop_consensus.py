"""Collective stop of learner processes.

All processes must stop before the same update, or collectives deadlock. A process that wants to stop publishes a request
tagged with the index of its next update and enters the barrier before that update. After the barrier every process reads
all requests. A request tagged with a later update is ignored until the barrier of that update.
"""

import signal
import time
from typing import Protocol

_STOP = "jaxsrl/stop/"


class Barrier(Protocol):
    """The part of `Processes` that a consensus needs."""

    process_id: int

    def send(self, key: str, text: str) -> None:
        """Publishes a text under a key."""
        ...

    def received(self, prefix: str) -> dict[str, str]:
        """Returns the texts under keys with this prefix."""
        ...

    def wait_at_barrier(self) -> None:
        """Waits until all processes are here."""
        ...


class StopConsensus:
    """Decides with the other processes, before each update, whether to make it.

    Thread-safety: `request_stop` from a signal handler, the rest from one thread.

    Attributes:
        stopped_by: the signal that ended the run, the same at every process; "" while it continues.
        waited_seconds: total wait for the other processes.
    """

    def __init__(self, processes: Barrier) -> None:
        self.stopped_by = ""
        self.waited_seconds = 0.0
        self._processes = processes
        self._requested = ""
        self._is_sent = False
        self._num_barriers = 0

    def request_stop(self, signal_name: str) -> None:
        """Asks all processes to stop before the next update."""
        self._requested = signal_name

    def should_continue(self) -> bool:
        """Waits for the other processes before an update; returns whether to make it."""
        processes, number = self._processes, self._num_barriers
        self._num_barriers += 1
        if self._requested and not self._is_sent:
            processes.send(f"{_STOP}{processes.process_id}", f"{number} {self._requested}")
            self._is_sent = True
        started = time.monotonic()
        processes.wait_at_barrier()
        self.waited_seconds += time.monotonic() - started
        requests = [text.split() for text in processes.received(_STOP).values()]
        due = [name for sent_at, name in requests if int(sent_at) <= number]
        if due:
            self.stopped_by = max(due, key=_signal_number)
        return not due


def _signal_number(signal_name: str) -> int:
    return int(signal.Signals[signal_name])
