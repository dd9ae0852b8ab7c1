"""Counters of the actors' inference calls, in shared memory for the learner's process."""

from envpool_bridge.shm.layout import ALIGNMENT
from envpool_bridge.shm.segment import SharedBytes, reserve
from jaxsrl.collect.inference.act import InferenceStats

_WORDS = ALIGNMENT // 8


class ActorCounters:
    """One cache line per actor. Process-safety: one writer each, the actor; any readers.

    Args:
        num_actors: number of actors.
        descriptor: memory of another process's object, which this object maps and closes; None to reserve memory.
    """

    def __init__(self, num_actors: int, descriptor: int | None = None) -> None:
        num_bytes = num_actors * ALIGNMENT
        segment = reserve(num_bytes, "the actors' counters") if descriptor is None else descriptor
        self._memory = SharedBytes(segment, num_bytes)
        self._words = self._memory.buffer.cast("q")
        self._num_actors = num_actors

    @property
    def descriptor(self) -> int:
        """Descriptor of the memory, for actors."""
        return self._memory.descriptor

    def count(self, actor: int, rows: int, seconds: float) -> None:
        """Counts one call."""
        words, place = self._words, actor * _WORDS
        words[place] += 1
        words[place + 1] += rows
        words[place + 2] += int(seconds * 1e9)

    def totals(self) -> InferenceStats:
        """Sums the counters over actors."""
        words, places = self._words, range(0, self._num_actors * _WORDS, _WORDS)
        calls, rows, nanoseconds = (sum(words[place + index] for place in places) for index in range(3))
        return InferenceStats(calls, rows, nanoseconds * 1e-9)

    def close(self) -> None:
        """Closes the memory; idempotent."""
        self._words.release()
        self._memory.close()
