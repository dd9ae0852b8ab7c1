"""Collective stop of learner processes.

All processes must stop before the same update, or collectives deadlock. A process that wants to stop publishes a request
tagged with the index of its next update and enters the barrier before that update. After the barrier every process reads
all requests. A request tagged with a later update is ignored until the barrier of that update.
"""

import signal
import time

from jaxsrl.cluster.learners.processes import Processes

_STOP = "jaxsrl/stop/"


class StopConsensus:
    """Decides with the other processes, before each update, whether to make it.

    Thread-safety: `request_stop` from a signal handler, the rest from one thread.

    Attributes:
        stopped_by: the signal or reason that ended the run, the same at every process; "" while it continues.
        waited_seconds: total wait for the other processes.
    """

    def __init__(self, processes: Processes) -> None:
        self.stopped_by = ""
        self.waited_seconds = 0.0
        self._processes = processes
        self._requested = ""
        self._is_sent = False
        self._num_barriers = 0

    def request_stop(self, reason: str) -> None:
        """Asks all processes to stop before the next update, for a signal's name or a sentence."""
        self._requested = reason

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
        requests = [text.split(" ", 1) for text in processes.received(_STOP).values()]
        due = [reason for sent_at, reason in requests if int(sent_at) <= number]
        if due:
            self.stopped_by = max(due, key=_priority)
        return not due


def _priority(reason: str) -> tuple[int, str]:
    """Returns the order in which one of several reasons is chosen: signals by number, after sentences."""
    is_signal = reason in signal.Signals.__members__
    return (int(signal.Signals[reason]) if is_signal else 0), reason
