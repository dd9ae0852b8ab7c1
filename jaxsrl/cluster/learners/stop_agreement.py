"""Before every update the learner processes meet, and stop before the same one.

A stop that a process wishes is told under the number of the update before which it was wished, and then the process meets the
others; after a meeting everybody reads all wishes. So a wish was there for all at the meeting that its number names, or for none:
those who read one with a later number leave it for the next meeting.
"""

import signal
import time
from typing import Protocol

_STOP = "jaxsrl/stop/"


class Meeting(Protocol):
    """What agreeing needs of `Processes`."""

    process_id: int

    def tell(self, key: str, text: str) -> None:
        """Leaves a text under a key."""
        ...

    def told(self, prefix: str) -> dict[str, str]:
        """Texts under keys with this prefix."""
        ...

    def meet(self) -> None:
        """Waits for all."""
        ...


class Agreement:
    """Whether the run goes on. Thread-safety: `wish` from a signal handler, the rest from the learner's thread.

    Attributes:
        stopped_by: the signal that ended the run, the same at every process; "" while it goes on.
        waited_seconds: for the other processes, in all.
    """

    def __init__(self, processes: Meeting) -> None:
        """Nobody wishes to stop."""
        self.stopped_by = ""
        self.waited_seconds = 0.0
        self._processes = processes
        self._wished = ""
        self._told = False
        self._meetings = 0

    def wish(self, signal_name: str) -> None:
        """This process asks all to stop before the next update."""
        self._wished = signal_name

    def goes_on(self) -> bool:
        """Meets the others before an update; whether it is to be made."""
        processes, number = self._processes, self._meetings
        self._meetings += 1
        if self._wished and not self._told:
            processes.tell(f"{_STOP}{processes.process_id}", f"{number} {self._wished}")
            self._told = True
        begin = time.monotonic()
        processes.meet()
        self.waited_seconds += time.monotonic() - begin
        wishes = [text.split() for text in processes.told(_STOP).values()]
        due = [name for told_at, name in wishes if int(told_at) <= number]
        if due:
            self.stopped_by = max(due, key=_number)
        return not due


def _number(signal_name: str) -> int:
    return int(signal.Signals[signal_name])
