"""A queue of trajectories for learners that want recent experience, each a few times.

In order "freshest" it is SRL's priority queue (Mei et al. 2024, arXiv:2306.16688): what has been learned from least is learned from
next, the newest of it first; what does not fit drives out what has been learned from most, the oldest of it first. In order "fifo"
everything is learned from in the order in which it came, and who has more waits.
"""

import dataclasses
import itertools
import threading
import time
from typing import Any, Literal

import jax
import numpy as np

from agents.api import Trajectory
from envpool_bridge.errors import BadEnvOutputError, UserError, WaitTimeoutError
from jaxsrl.replay.queue.rate_limiter import RateLimit, RateLimiter, min_size


@dataclasses.dataclass(frozen=True)
class QueueConfig:
    """What a queue keeps and in which order.

    Attributes:
        order: "freshest", which drops what does not fit; or "fifo", where it waits.
        max_size: batches that are kept.
        reuses: times that each batch is learned from.
        batch_size: trajectories of a batch, rows side by side.
    """

    order: Literal["freshest", "fifo"] = "freshest"
    max_size: int = 16
    reuses: int = 1
    batch_size: int = 1

    def __post_init__(self) -> None:
        for name in ("max_size", "reuses", "batch_size"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1: got {getattr(self, name)}")


@dataclasses.dataclass(frozen=True, eq=False)
class QueuedBatch:
    """What is learned from. Its arrays may be handed out again: they are for reading only.

    Attributes:
        trajectory: [T+1, n * B, ...] and so on, n = `QueueConfig.batch_size`, in the order in which they came.
        number: how many batches were complete before it.
        uses: how often it was handed out before.
    """

    trajectory: Trajectory
    number: int
    uses: int


@dataclasses.dataclass(frozen=True)
class QueueCounts:
    """What has happened so far.

    Attributes:
        trajectories: that were put.
        batches: that were handed out, each time counted.
        dropped: batches that did not fit.
        dropped_unused: of these, the ones that nobody had learned from.
        size: batches that are there.
    """

    trajectories: int
    batches: int
    dropped: int
    dropped_unused: int
    size: int


class TrajectoryQueue:
    """Trajectories of one form, copied as they come. Thread-safety: any threads put and get."""

    def __init__(self, config: QueueConfig) -> None:
        """An empty queue."""
        self._config = config
        self._limiter = RateLimiter(_limit(config))
        self._filling = threading.Lock()
        self._form: Trajectory | None = None
        self._pending: Trajectory | None = None
        self._trajectories = 0
        self._entries: list[QueuedBatch] = []
        self._numbers = itertools.count()
        self._dropped, self._dropped_unused = 0, 0

    @property
    def counts(self) -> QueueCounts:
        """What has happened so far."""
        counts = self._limiter.counts
        return QueueCounts(self._trajectories, counts.samples, self._dropped, self._dropped_unused, counts.size)

    def put(self, trajectory: Trajectory, timeout_seconds: float) -> None:
        """Copies a trajectory of numpy arrays; its memory may be used again afterwards.

        Raises:
            WaitTimeoutError: "fifo" only: no room within `timeout_seconds`; the trajectory was not taken.
            ReplayClosedError: closed, before or meanwhile.
            BadEnvOutputError: it has not the form of those before it.
        """
        deadline = time.monotonic() + timeout_seconds
        if not self._filling.acquire(timeout=timeout_seconds):
            raise WaitTimeoutError(
                f"expected the queue to take a trajectory within {timeout_seconds:g} s: others wait for room already; see whether "
                f"the learner still runs"
            )
        try:
            place = self._trajectories % self._config.batch_size
            if place + 1 < self._config.batch_size:
                self._copy(trajectory, place)
            else:
                with self._limiter.inserting(1, max(0.0, deadline - time.monotonic())):
                    self._add(self._copy(trajectory, place))
            self._trajectories += 1
        finally:
            self._filling.release()

    def get(self, timeout_seconds: float) -> QueuedBatch:
        """The batch to learn from next.

        Raises:
            WaitTimeoutError: none is complete within `timeout_seconds`.
            ReplayClosedError: closed, before or meanwhile.
        """
        with self._limiter.sampling(1, timeout_seconds):
            found = max(self._entries, key=_freshness) if self._config.order == "freshest" else self._entries[0]
            place = self._entries.index(found)
            if found.uses + 1 < self._config.reuses:
                self._entries[place] = dataclasses.replace(found, uses=found.uses + 1)
            else:
                del self._entries[place]
                self._limiter.delete(1)
        return found

    def discard(self, number: int) -> None:
        """Takes out the batch of this number, if it is still there: it is not handed out again."""
        with self._limiter.holding():
            left = [entry for entry in self._entries if entry.number != number]
            self._limiter.delete(len(self._entries) - len(left))
            self._entries = left

    def close(self, error: BaseException | None = None) -> None:
        """Wakes whoever waits. The first error given is the cause of what is raised."""
        self._limiter.close(error)

    def _copy(self, trajectory: Trajectory, place: int) -> Trajectory:
        form = self._form or jax.tree.map(lambda x: np.broadcast_to(np.zeros((), x.dtype), x.shape), trajectory)
        self._form = form
        if self._pending is None:
            self._pending = _empty_batch(form, self._config.batch_size)
        _write_rows(self._pending, trajectory, place, self._config.batch_size)
        return self._pending

    def _add(self, batch: Trajectory) -> None:
        self._entries.append(QueuedBatch(batch, next(self._numbers), uses=0))
        self._pending = None
        if len(self._entries) > self._config.max_size:
            dropped = min(self._entries, key=_freshness)
            self._entries.remove(dropped)
            self._limiter.delete(1)
            self._dropped += 1
            self._dropped_unused += dropped.uses == 0


def _limit(config: QueueConfig) -> RateLimit:
    if config.order == "freshest":
        return min_size(1)
    # Only the first batch can have been used in part: there is room for another while all but max_size - 1 uses are left.
    return RateLimit(float(config.reuses), 1, 0.0, float(config.reuses * config.max_size))


def _freshness(entry: QueuedBatch) -> tuple[int, int]:
    return -entry.uses, entry.number


def _empty_batch(like: Trajectory, count: int) -> Trajectory:
    def empty(axis: int, array: np.ndarray) -> np.ndarray:
        shape = (*array.shape[:axis], array.shape[axis] * count, *array.shape[axis + 1 :])
        return np.empty(shape, array.dtype)

    return _map_rows(empty, like)


def _write_rows(batch: Trajectory, trajectory: Trajectory, place: int, count: int) -> None:
    def write(axis: int, target: np.ndarray, source: np.ndarray) -> None:
        rows = target.shape[axis] // count
        into = target[(slice(None),) * axis + (slice(place * rows, (place + 1) * rows),)]
        if into.shape != source.shape or into.dtype != source.dtype:
            raise BadEnvOutputError(
                f"expected a trajectory of the form of the first, with an array {into.dtype}{list(into.shape)} here: got "
                f"{source.dtype}{list(source.shape)}; a queue holds trajectories of one environment and rollout_length"
            )
        into[...] = source

    if jax.tree.structure(batch) != jax.tree.structure(trajectory):
        raise BadEnvOutputError(
            f"expected a trajectory of the structure {jax.tree.structure(batch)}: got {jax.tree.structure(trajectory)}"
        )
    _map_rows(write, batch, trajectory)


def _map_rows(function: Any, trajectory: Trajectory, *others: Trajectory) -> Any:
    """`function(axis of the rows, leaf, ...)` of each leaf: memory comes before a trajectory's first step and has no time."""
    state = jax.tree.map(lambda *leaves: function(0, *leaves), *[each.agent_state for each in (trajectory, *others)])
    steps = [dataclasses.replace(each, agent_state=()) for each in (trajectory, *others)]
    return dataclasses.replace(jax.tree.map(lambda *leaves: function(1, *leaves), *steps), agent_state=state)
