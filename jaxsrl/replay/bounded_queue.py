"""Bounded first-in, first-out queue between threads, with a deadline for every wait."""

import collections
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from envpool_bridge.errors import EnvPoolError, WaitTimeoutError
from jaxsrl.machine.waits import wait_in_slices

T = TypeVar("T")


class ReplayClosedError(EnvPoolError):
    """Replay was closed while in use. Its cause is the error that closed it, if any."""


class BoundedQueue(Generic[T]):
    """Queue of at most `max_size` items. A full queue blocks `put`, an empty one `get`. Thread-safety: any threads.

    `queue.Queue` of the standard library can be closed only from Python 3.13 on, and not with an error.
    """

    def __init__(self, max_size: int, items: str = "items of a queue") -> None:
        self._max_size, self._name = max_size, items  # the name in messages
        self._items: collections.deque[T] = collections.deque()
        self._num_inserted = 0
        self._changed = threading.Condition()
        self._closed, self._error = False, None

    def put(self, item: T, timeout_seconds: float) -> None:
        """Appends an item as soon as there is room.

        Raises:
            WaitTimeoutError: If there is no room within `timeout_seconds`.
            ReplayClosedError: If the queue is closed, before or during the wait.
        """
        with self._changed:
            self._wait("insert", lambda: len(self._items) < self._max_size, timeout_seconds)
            self._items.append(item)
            self._num_inserted += 1
            self._changed.notify_all()

    def get(self, timeout_seconds: float) -> T:
        """Removes and returns the oldest item as soon as there is one. Raises the errors of `put`."""
        with self._changed:
            self._wait("sample", lambda: bool(self._items), timeout_seconds)
            item = self._items.popleft()
            self._changed.notify_all()
        return item

    def close(self, error: BaseException | None = None) -> None:
        """Wakes all waiting threads and drops all items. The first error given becomes the cause of what they raise."""
        with self._changed:
            self._closed, self._error = True, self._error or error
            self._items.clear()
            self._changed.notify_all()

    def _wait(self, verb: str, is_possible: Callable[[], bool], timeout_seconds: float) -> None:
        def ends(seconds: float) -> bool:
            return self._changed.wait_for(lambda: self._closed or is_possible(), seconds)

        in_time = wait_in_slices(ends, timeout_seconds)
        if self._closed:
            raise ReplayClosedError(f"replay was closed: no thread can {verb} any more") from self._error
        if not in_time:
            size = len(self._items)
            raise WaitTimeoutError(
                f"thread {threading.current_thread().name} waited {timeout_seconds:g} s to {verb} 1 {self._name}: "
                f"{self._num_inserted} are inserted, {self._num_inserted - size} removed and {size} left, of at most "
                f"{self._max_size}; check whether the other side still runs"
            )
