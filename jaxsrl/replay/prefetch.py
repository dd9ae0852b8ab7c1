"""Thread that draws and gathers samples while the learner computes; draw results depend on counts, never on timing.

Draw g of a run uses every trajectory inserted before its update, and the priorities of gradient steps up to g - 1 - d,
where d is `ReplayConfig.priority_delay`. So d samples are drawn ahead, and a buffer without this thread draws the same.
"""

import collections
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from agents.api import Array, Sample
from envpool_bridge.errors import WaitTimeoutError
from jaxsrl.replay.bounded_queue import BoundedQueue, ReplayClosedError
from jaxsrl.replay.device.sampler import SampledWindows
from jaxsrl.replay.host.buffer import HostBuffer, PriorityUpdate

_IDLE_SECONDS = 1e6  # between two trajectories; the collector has the deadline
_JOIN_SECONDS = 10.0


class PrefetchingSampler:
    """Thread that samples from a buffer ahead of the learner. Thread-safety: methods are for one thread, the learner's.

    The learner's turn is: insert, `request`, then `get` and `update_priorities` for each gradient step, and `end_update`.
    Other code may use the buffer only between `end_update` and `request`.

    Args:
        buffer: Buffer to draw from.
        timeout_seconds: Limit of every wait: for a sample, and for priorities. The first wait includes compilation of
            the learner.
        min_prefetched: least number of samples drawn ahead, where draws do not depend on priorities.

    Attributes:
        busy_seconds: total seconds in which the thread drew and gathered samples and updated priorities.
        waited_seconds: total seconds of waiting in `get` and `end_update`.
        num_samples: number of samples that `get` has returned.
    """

    def __init__(self, buffer: HostBuffer, timeout_seconds: float = 600.0, min_prefetched: int = 2) -> None:
        self.busy_seconds = self.waited_seconds = 0.0
        self.num_samples = 0
        self._buffer, self._timeout = buffer, timeout_seconds
        self._delay = buffer.sizes.priority_delay
        self._prioritized = bool(buffer.sizes.priority_exponent)
        ahead = self._delay if self._prioritized else max(self._delay, min_prefetched)
        self._turns: BoundedQueue[Sequence[Array]] = BoundedQueue(1, "turns of the learner")
        self._samples: BoundedQueue[Sample] = BoundedQueue(ahead + 1, "samples from the thread replay-sampler")
        self._priorities: BoundedQueue[Any] = BoundedQueue(ahead + 2, "priorities from the learner")
        self._finished: BoundedQueue[None] = BoundedQueue(1, "ends of turns from the thread replay-sampler")
        self._unknown: collections.deque[SampledWindows] = collections.deque()
        self._under_way = False
        self._thread = threading.Thread(target=self._run, name="replay-sampler", daemon=True)
        self._thread.start()

    def request(self, keys: Sequence[Array]) -> None:
        """Requests one sample for each key ([W] uint32, see `HostBuffer.sample`), in order. The keys are consumed."""
        self._turns.put(keys, self._timeout)
        self._under_way = True

    def get(self) -> Sample:
        """Returns the next sample.

        Raises:
            WaitTimeoutError: If the sample is not ready in time.
            ReplayClosedError: If the sampler is closed. Its cause is the error of the thread, if any.
        """
        start = time.perf_counter()
        sample = self._samples.get(self._timeout)
        self.waited_seconds += time.perf_counter() - start
        self.num_samples += 1
        return sample

    def get_many(self, max_samples: int) -> list[Sample]:
        """Returns the next sample and later ones that are ready, at most `max_samples`. Raises the errors of `get`."""
        samples = [self.get()]
        while len(samples) < max_samples:
            try:
                samples.append(self._samples.get(0.0))
            except WaitTimeoutError:
                break
        return samples

    def update_priorities(self, priority: Any) -> None:
        """Sends the priorities [N] of the oldest sample without priorities, computed or not. Raises the errors of `get`."""
        if self._prioritized:
            self._priorities.put(priority, self._timeout)

    def end_update(self) -> None:
        """Waits until this turn's samples are drawn and the next turn's draws have the priorities that are due.

        Raises the errors of `get`.
        """
        if self._under_way:
            start = time.perf_counter()
            self._finished.get(self._timeout)
            self.waited_seconds += time.perf_counter() - start
            self._under_way = False

    def pending_updates(self) -> list[PriorityUpdate]:
        """Returns the pending priorities, oldest first, for a checkpoint between turns. They stay pending."""
        priorities = [np.asarray(self._priorities.get(self._timeout)) for _ in self._unknown]
        pending = list(zip(self._unknown, priorities, strict=True))
        for priority in priorities:
            self._priorities.put(priority, self._timeout)
        return pending

    def restore(self, sent: Sequence[PriorityUpdate]) -> None:
        """Restores pending priorities, before the first turn."""
        for drawn, priority in sent:
            self._unknown.append(drawn)
            self._priorities.put(priority, self._timeout)

    def close(self) -> None:
        """Stops the thread; idempotent.

        Raises:
            WaitTimeoutError: If the thread did not end within 10 s. If another error is being handled, it gets a note instead.
        """
        failure = sys.exc_info()[1]
        self._close_queues()
        self._thread.join(_JOIN_SECONDS)
        if not self._thread.is_alive():
            return
        problem = (
            f"expected the thread {self._thread.name} to end within {_JOIN_SECONDS:g} s: it still gathers a sample or waits for a "
            f"gradient step; check whether the device still computes"
        )
        if failure is None:
            raise WaitTimeoutError(problem)
        failure.add_note(problem)

    def _close_queues(self, error: BaseException | None = None) -> None:
        for queue in (self._turns, self._samples, self._priorities, self._finished):
            queue.close(error)

    def _run(self) -> None:
        try:
            while True:
                for key in self._turns.get(_IDLE_SECONDS):
                    self._draw(key)
                self._finished.put(None, self._timeout)
        except ReplayClosedError:
            pass
        except BaseException as error:  # noqa: BLE001  raised again where the learner waits, as the cause
            self._close_queues(error)

    def _draw(self, key: Array) -> None:
        start = time.perf_counter()
        sample, drawn = self._buffer.sample(key)
        self.busy_seconds += time.perf_counter() - start
        self._samples.put(sample, self._timeout)
        if drawn is None:
            return
        self._unknown.append(drawn)
        if len(self._unknown) > self._delay:
            # Before the next draw, and before the next insertion, which would age the windows.
            priority = np.asarray(self._priorities.get(self._timeout))  # waits until they are computed
            start = time.perf_counter()
            self._buffer.update_priorities(self._unknown[0], priority)
            self.busy_seconds += time.perf_counter() - start
            self._unknown.popleft()
