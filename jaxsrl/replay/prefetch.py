"""Samples drawn and gathered by a thread while the learner computes; what each draw knows is fixed by numbers, never by timing.

Draw g of a run knows every trajectory inserted before its update, and the priorities that gradient steps up to g - 1 - d have
found, d = `ReplayConfig.priority_delay`. So d samples are drawn ahead, and a buffer without this thread draws the same.
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

_IDLE_SECONDS = 1e6  # between two trajectories; whoever collects them has the deadline
_JOIN_SECONDS = 10.0
_AHEAD_OF_NOTHING = 2  # samples ahead where draws do not depend on priorities


class PrefetchingSampler:
    """Owner of a thread that uses a buffer. Thread-safety: the methods are for one thread, the learner's.

    The learner's turn is: insert, `request`, then `get` and `update_priorities` for each gradient step, and `end_update`. The buffer
    may be used by others only between `end_update` and `request`.

    Attributes:
        busy_seconds: that the thread has drawn, gathered and taken in priorities, in all.
        waited_seconds: that `get` and `end_update` have waited, in all.
        num_samples: that `get` has returned.
    """

    def __init__(
        self, buffer: HostBuffer, timeout_seconds: float = 600.0, ahead_of_nothing: int = _AHEAD_OF_NOTHING
    ) -> None:
        """Starts the thread.

        Args:
            buffer: to draw from.
            timeout_seconds: of every wait: for a sample to be gathered, and for priorities to be computed, which the first
                time includes compiling the learner.
            ahead_of_nothing: samples that are drawn ahead at least, where draws do not depend on priorities.
        """
        self.busy_seconds = self.waited_seconds = 0.0
        self.num_samples = 0
        self._buffer, self._timeout = buffer, timeout_seconds
        self._delay = buffer.sizes.priority_delay
        self._prioritised = bool(buffer.sizes.priority_exponent)
        ahead = self._delay if self._prioritised else max(self._delay, ahead_of_nothing)
        self._turns: BoundedQueue[Sequence[Array]] = BoundedQueue(1, "turns of the learner")
        self._samples: BoundedQueue[Sample] = BoundedQueue(ahead + 1, "samples from the thread replay-sampler")
        self._priorities: BoundedQueue[Any] = BoundedQueue(ahead + 2, "priorities from the learner")
        self._finished: BoundedQueue[None] = BoundedQueue(1, "ends of turns from the thread replay-sampler")
        self._unknown: collections.deque[SampledWindows] = collections.deque()
        self._under_way = False
        self._thread = threading.Thread(target=self._run, name="replay-sampler", daemon=True)
        self._thread.start()

    def request(self, keys: Sequence[Array]) -> None:
        """Has a sample drawn with each of these keys ([W] uint32, see `HostBuffer.sample`), in order; they are consumed."""
        self._turns.put(keys, self._timeout)
        self._under_way = True

    def get(self) -> Sample:
        """Returns the next sample.

        Raises:
            WaitTimeoutError: it is not ready in time.
            ReplayClosedError: closed; its cause is the error of the thread, if there was one.
        """
        start = time.perf_counter()
        sample = self._samples.get(self._timeout)
        self.waited_seconds += time.perf_counter() - start
        self.num_samples += 1
        return sample

    def get_many(self, most: int) -> list[Sample]:
        """Returns the next sample and those after it that are there already, at most so many. Raises as `get`."""
        found = [self.get()]
        while len(found) < most:
            try:
                found.append(self._samples.get(0.0))
            except WaitTimeoutError:
                break
        return found

    def update_priorities(self, priority: Any) -> None:
        """The priorities [N] of the oldest sample that has none yet; they need not be computed yet. Raises as `get`."""
        if self._prioritised:
            self._priorities.put(priority, self._timeout)

    def end_update(self) -> None:
        """Waits until this turn's samples are drawn and the priorities that the next turn's draws know are in. Raises as `get`."""
        if self._under_way:
            start = time.perf_counter()
            self._finished.get(self._timeout)
            self.waited_seconds += time.perf_counter() - start
            self._under_way = False

    def sent(self) -> list[PriorityUpdate]:
        """Priorities on their way, oldest first, to be saved; between turns. They stay on their way."""
        priorities = [np.asarray(self._priorities.get(self._timeout)) for _ in self._unknown]
        found = list(zip(self._unknown, priorities, strict=True))
        for priority in priorities:
            self._priorities.put(priority, self._timeout)
        return found

    def restore(self, sent: Sequence[PriorityUpdate]) -> None:
        """Goes on with priorities on their way, before the first turn."""
        for drawn, priority in sent:
            self._unknown.append(drawn)
            self._priorities.put(priority, self._timeout)

    def close(self, error: BaseException | None = None) -> None:
        """Ends the thread. May be called again.

        Raises:
            WaitTimeoutError: it did not end within 10 s, and no other error is being handled. Such an error gets a note.
        """
        failure = sys.exc_info()[1]
        self._close_queues(error)
        self._thread.join(_JOIN_SECONDS)
        if not self._thread.is_alive():
            return
        problem = (
            f"expected the thread {self._thread.name} to end within {_JOIN_SECONDS:g} s: it still gathers a sample or waits for a "
            f"gradient step; see whether the device still computes"
        )
        if failure is None:
            raise WaitTimeoutError(problem)
        failure.add_note(problem)

    def _close_queues(self, error: BaseException | None) -> None:
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
