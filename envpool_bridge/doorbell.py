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
        deadline, spin_until = start + timeout_seconds, start + self._spin_seconds
        try:
            while self._spin_seconds and monotonic() < spin_until:
                sched_yield()
                answer = ready()
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
