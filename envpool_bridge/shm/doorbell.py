"""Wake-ups between processes. A doorbell says "look at the counters"; the counters alone are the truth.

An eventfd rather than a named semaphore: it can be handed to a process that starts after every name is gone, it is waited
for together with the death of a process in one poll(), and its timeouts run on the monotonic clock (the timed waits of
POSIX semaphores follow the wall clock, and stall when somebody sets it back).
"""

import os
import select
from collections.abc import Callable
from os import sched_yield
from time import monotonic
from typing import TypeVar

T = TypeVar("T")
# Of a yield that gave the core to somebody who computes: one that nobody wanted takes a microsecond, one to a process that acts
# and sleeps again some ten, one to a process that computes a whole slice of the scheduler's, milliseconds.
_TAKEN_SECONDS = 200e-6
_REST_SECONDS = 0.1


class Doorbell:
    """Any process may ring; one process waits."""

    def __init__(self, descriptor: int | None = None) -> None:
        """Wraps `descriptor`, or creates a new doorbell."""
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if descriptor is None else descriptor

    def ring(self) -> None:
        """Wakes the waiter, now or at its next wait; never blocks."""
        try:
            os.eventfd_write(self.descriptor, 1)
        except BlockingIOError:
            pass  # 2^64 - 2 unheard rings: it is ringing already

    def clear(self) -> None:
        """Forgets rings so far. Look at the counters after this, never before."""
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
    """Waits for a condition on counters: spins briefly, then blocks on a doorbell, always with a deadline.

    It spins by yielding the core, so that whoever it waits for may use it. Where others compute on that core this is no way to
    wait: who yields stands behind them for a slice each, while who sleeps and is woken goes first. So a yield that took long ends
    the spinning, for a tenth of a second.

    Attributes:
        waited_seconds: total time spent blocked or spinning, for metrics.
    """

    def __init__(self, doorbell: Doorbell, watch: tuple[int, ...] = (), spin_seconds: float = 0.0) -> None:
        """Waits on `doorbell`; also wakes when a descriptor in `watch` becomes readable."""
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
            What `ready()` last said.
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
                for descriptor, _ in self._poll.poll(max(1.0, left * 1e3)):
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
        while True:
            sched_yield()
            before, now = now, monotonic()
            if now - before > _TAKEN_SECONDS:
                self._may_spin_from = now + _REST_SECONDS
                spin_until = now
            answer = ready()
            if answer or now >= spin_until:
                return answer
