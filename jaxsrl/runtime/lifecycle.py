"""Starting, stopping and failing as one: the first error stops everything and is raised in the main thread."""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_JOIN_SECONDS = 30.0


class Lifecycle:
    """Shared by the threads of a run.

    Attributes:
        stop_signal: name of the signal that asked the run to stop; "" if none did.
    """

    def __init__(self) -> None:
        """Running, no error."""
        self.stop_signal = ""
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def should_stop(self) -> bool:
        """Whether threads must return."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Asks threads to return."""
        self._stop.set()

    def start_thread(self, name: str, body: Callable[[], None]) -> None:
        """Runs `body` in a thread whose first exception stops the run."""

        def guarded() -> None:
            try:
                body()
            except BaseException as error:  # noqa: BLE001  raised again by raise_error, in the main thread
                if self._error is None:
                    self._error = error
                self._stop.set()

        thread = threading.Thread(target=guarded, name=name)
        self._threads.append(thread)
        thread.start()

    def raise_error(self) -> None:
        """Raises the first error of any thread."""
        if self._error is not None:
            raise self._error

    def join(self, timeout_seconds: float = _JOIN_SECONDS) -> None:
        """Stops and waits for the threads.

        Raises:
            TimeoutError: a thread did not return in time.
        """
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout_seconds)
            if thread.is_alive():
                raise TimeoutError(f"thread {thread.name} did not stop within {timeout_seconds} s")


REQUEUE_STATUS = 75
"""Exit status after SIGUSR1, which schedulers send before they take a machine away: EX_TEMPFAIL, "try again"."""


def exit_status(signal_name: str) -> int:
    """What a process that this signal stopped in good order exits with: 128 + its number as shells say, or `REQUEUE_STATUS`."""
    return REQUEUE_STATUS if signal_name == "SIGUSR1" else 128 + signal.Signals[signal_name]


@contextlib.contextmanager
def stop_on_signals(requested: Callable[[str], None], grace_seconds: float = 0.0) -> Iterator[None]:
    """Inside, SIGINT, SIGTERM and SIGUSR1 call `requested(name)` once; a second signal leaves the process at once.

    Only the main thread can receive signals: elsewhere (a notebook's worker thread) nothing changes.

    Args:
        requested: asks the run to stop.
        grace_seconds: after the signal, before the process is left all the same, with the stacks of its threads on stderr; 0 for
            never.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = False
    timers: list[threading.Timer] = []

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        if seen:
            os._exit(128 + number)  # children go with us: the kernel kills them when their parent ends
        seen = True
        name = signal.Signals(number).name
        if grace_seconds:
            timer = threading.Timer(grace_seconds, _leave, (name, grace_seconds))
            timer.daemon = True
            timers.append(timer)
            timer.start()
        requested(name)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _leave(name: str, grace_seconds: float) -> None:
    sys.stderr.write(f"the run did not stop within {grace_seconds:g} s of {name}; where its threads are:\n")
    sys.stderr.flush()
    faulthandler.dump_traceback()
    os._exit(exit_status(name))
