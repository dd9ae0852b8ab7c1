"""The deadline of everything that a run waits for: a run in which nothing happens for too long ends with an error.

Threads of a run wait for each other in a circle: the learner for trajectories, inference servers for parameters. One that is
stuck therefore stops all, and one deadline for the run is a deadline for each of its waits.
"""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from envpool_bridge.errors import WaitTimeoutError

OPTION = "--run.stall-timeout-seconds"
_RESUMES = "The same command resumes from the newest checkpoint."
_POLL_SECONDS = 1.0  # a main thread that asked for the deadline within this time waits, and does not compute
_GRACE_SECONDS = 30.0
_END_SECONDS, _LEAVE_SECONDS = 120.0, 10
_PAUSE_SECONDS = 3.0  # a turn of the watching thread that is later than this was paused with the process (SIGSTOP)


class StalledError(WaitTimeoutError):
    """Error of a run without progress until its deadline.

    The message names each waiter and what it waits for. The newest checkpoint resumes the run.
    """


class Watchdog:
    """Owner of a thread that compares the counts of a run. Thread-safety: `check` in the main thread of the run.

    `check` raises in a main thread that waits. A main thread that is inside a computation cannot raise: the watchdog then ends
    the process, and its environments end with it. Time in which the whole process is paused does not count.

    Args:
        limit_seconds: longest time without any change of the counts.
        counts: grow while the run makes progress. Called in the watchdog's thread.
        waits: one sentence for each part of the run that waits, given whether the main thread waits. Called in any thread.
        log: keeps the message of a process that is ended.
        option: name of the limit, for the message.
        outcome: sentence of the message about what is left of the run.
    """

    def __init__(
        self,
        limit_seconds: float,
        counts: Callable[[], Mapping[str, float]],
        waits: Callable[[bool], Sequence[str]],
        log: Callable[[str], None],
        option: str = OPTION,
        outcome: str = _RESUMES,
    ) -> None:
        self._limit, self._counts, self._waits, self._log = limit_seconds, counts, waits, log
        self._option, self._outcome = option, outcome
        self._patience = limit_seconds + min(limit_seconds, _GRACE_SECONDS)  # `check` comes first
        self._seen: Mapping[str, float] = {}
        self._since = self._polled = self._turn = time.monotonic()
        self._raised = ""
        self._ended = threading.Event()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watches the deadline inside; it also covers closing the run."""
        self._since = self._turn = time.monotonic()
        thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def check(self) -> None:
        """Notes that the main thread waits.

        Raises:
            StalledError: nothing has happened for too long.
        """
        self._polled = now = time.monotonic()
        if now - self._since <= self._limit or self._raised or self._paused(now):
            return
        self._look()  # the thread may not have seen yet what ended just now
        if now - self._since > self._limit:
            self._raised = self._message(is_waiting=True)
            self._since, self._patience = now, _END_SECONDS
            raise StalledError(self._raised)

    def forgive(self) -> None:
        """Excludes the time since the last progress from the deadline: the run waits on purpose."""
        self._since = self._polled = time.monotonic()

    def _watch(self) -> None:
        while not self._ended.wait(self._poll_seconds()):
            self._begin_turn()
            if not self._raised:
                self._look()
            if self._turn - self._since > self._patience:  # not the time now: a pause since then must not count
                self._leave()

    def _begin_turn(self) -> None:
        now = time.monotonic()
        paused = self._paused(now)
        if paused:
            self._since = min(now, self._since + paused)
        self._turn = now  # `check` reads it before `_since`, so that it sees both or raises nothing

    def _poll_seconds(self) -> float:
        return min(1.0, self._limit / 8)

    def _paused(self, now: float) -> float:
        """Returns how late the next turn of the watching thread is; 0.0 within what a busy machine explains."""
        late = now - self._turn - self._poll_seconds()
        return late if late > min(_PAUSE_SECONDS, self._limit / 4) else 0.0

    def _look(self) -> None:
        try:
            counts = self._counts()
        except Exception:  # noqa: BLE001  parts of a run that is ending are closed already
            return
        if counts != self._seen:
            self._seen, self._since = counts, time.monotonic()

    def _message(self, is_waiting: bool) -> str:
        try:
            waits = list(self._waits(is_waiting))
        except Exception as error:  # noqa: BLE001  the stall matters more
            waits = [f"could not find out what the run waits for ({error!r})"]
        seconds = time.monotonic() - self._since
        return (
            f"the run is stalled: nothing happened for {seconds:.0f} s ({self._option} {self._limit:g}): {'; '.join(waits)}. "
            f"{self._outcome} If one step, update, compilation or checkpoint takes longer than that, use a larger {self._option}"
        )

    def _leave(self) -> None:
        signal.alarm(_LEAVE_SECONDS)  # stderr may be a pipe that is full
        message = self._raised or self._message(time.monotonic() - self._polled < _POLL_SECONDS)
        with contextlib.suppress(Exception):
            self._log(message)
        with contextlib.suppress(Exception):  # stderr may be something else than a file
            sys.stderr.write(f"error: {message}\nthe stacks of its threads:\n")
            sys.stderr.flush()
            faulthandler.dump_traceback()
        os._exit(1)  # children go with us: the kernel kills them when their parent ends
