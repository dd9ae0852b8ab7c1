"""A queue between threads that never holds more than it may, never waits for ever and is closed by the first error."""

import collections
from typing import Generic, TypeVar

from jaxsrl.replay.queue.rate_limiter import Counts, RateLimiter, queue

T = TypeVar("T")


class BoundedQueue(Generic[T]):
    """First in, first out; each item comes out once. Thread-safety: any threads."""

    def __init__(self, max_size: int, items: str = "items of a queue") -> None:
        """An empty queue of at most `max_size` items; `items` is their name in messages, with where they come from."""
        self._limiter = RateLimiter(queue(max_size), items=items)
        self._items: collections.deque[T] = collections.deque()

    @property
    def counts(self) -> Counts:
        """What has gone in and out."""
        return self._limiter.counts

    def put(self, item: T, timeout_seconds: float) -> None:
        """Adds an item as soon as there is room.

        Raises:
            WaitTimeoutError: no room within `timeout_seconds`.
            ReplayClosedError: closed, before or meanwhile.
        """
        with self._limiter.inserting(1, timeout_seconds):
            self._items.append(item)

    def get(self, timeout_seconds: float) -> T:
        """Takes the oldest item as soon as there is one. Raises as `put`."""
        with self._limiter.sampling(1, timeout_seconds):
            item = self._items.popleft()
            self._limiter.delete(1)
        return item

    def close(self, error: BaseException | None = None) -> None:
        """Wakes whoever waits; items that are left are lost. The first error given is the cause of what is raised."""
        self._limiter.close(error)
