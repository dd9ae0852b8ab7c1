"""Wake-ups between processes. A ring means that counters may have changed; only the counters carry information.

An eventfd is used instead of a named semaphore. It can be passed to a process that starts after every name is unlinked,
and one poll() waits for it and for the death of a process. Its timeouts run on the monotonic clock. The timed waits of
POSIX semaphores follow the wall clock and stall when it is set back.
"""

import os
import select
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

T = TypeVar("T")
# A yield that took longer gave the core to a process that computes for a whole time slice, milliseconds. An uncontended yield takes
# a microsecond, and one to a process that acts and sleeps again about ten.
_TAKEN_SECONDS = 200e-6
_REST_SECONDS = 0.1
MAX_POLL_MILLISECONDS = 1e9
"""Longest wait of `select.poll`, which takes a 32-bit integer."""


class Doorbell:
    """Wake-up signal: any process may ring, one process waits. Without a descriptor it creates a new eventfd."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if descriptor is None else descriptor

    def ring(self) -> None:
        """Wakes the waiter, now or at its next wait; never blocks."""
        try:
            os.eventfd_write(self.descriptor, 1)
        except BlockingIOError:
            pass  # 2^64 - 2 uncleared rings: the waiter wakes anyway

    def clear(self) -> None:
        """Clears all rings so far. Read the counters after this call, never before."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Closes the descriptor; idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Waiter:
    """Waiter for a condition on counters: spins briefly, then blocks on a doorbell, always with a deadline.

    Spinning yields the core to the process that is waited for. A yielding thread queues behind a running thread for a
    whole time slice, while a sleeping thread is scheduled first when woken. A slow yield therefore disables spinning
    for a tenth of a second.

    Args:
        doorbell: the doorbell to block on.
        watch: descriptors that also wake the waiter when they become readable.
        spin_seconds: longest time to spin before blocking.

    Attributes:
        waited_seconds: total time spent blocked or spinning, for metrics.
    """

    def __init__(self, doorbell: Doorbell, watch: tuple[int, ...] = (), spin_seconds: float = 0.0) -> None:
        self._doorbell = doorbell
        self._descriptor = doorbell.descriptor
        self._poll = select.poll()
        self._poll.register(doorbell.descriptor, select.POLLIN)
        for descriptor in watch:
            self._poll.register(descriptor, select.POLLIN)
        self._spin_seconds = spin_seconds
        self._may_spin_from = 0.0
        self.waited_seconds = 0.0

    def wait(self, ready: Callable[[], T], timeout_seconds: float, woken: Callable[[], None] | None = None) -> T:
        """Blocks until `ready()` is true or until `timeout_seconds` have passed on the monotonic clock.

        Args:
            ready: cheap condition on counters.
            timeout_seconds: upper bound of the wait.
            woken: called whenever a watched descriptor (not the doorbell) is readable; may raise.

        Returns:
            The last result of `ready()`.
        """
        answer = ready()
        if answer:
            return answer
        start = monotonic()
        deadline = start + timeout_seconds
        try:
            if self._spin_seconds and start >= self._may_spin_from:
                answer = self._spin(ready, start, min(deadline, start + self._spin_seconds))
                if answer:
                    return answer
            left = timeout_seconds
            while left > 0:
                for descriptor, _ in self._poll.poll(min(max(1.0, left * 1e3), MAX_POLL_MILLISECONDS)):
                    if descriptor == self._descriptor:
                        self._doorbell.clear()
                    elif woken is not None:
                        woken()
                answer = ready()
                if answer:
                    return answer
                left = deadline - monotonic()
            return answer
        finally:
            self.waited_seconds += monotonic() - start

    def _spin(self, ready: Callable[[], T], now: float, spin_until: float) -> T:
        sched_yield = os.sched_yield
        while True:
            sched_yield()
            before, now = now, monotonic()
            if now - before > _TAKEN_SECONDS:
                self._may_spin_from = now + _REST_SECONDS
                spin_until = now
            answer = ready()
            if answer or now >= spin_until:
                return answer
