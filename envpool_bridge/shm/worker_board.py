"""How far each part has come, as its counters tell, and what else a worker leaves for whoever comes after it.

The counters that publish steps are the heartbeat: they only grow, and a worker that owes a step and does not move them hangs. So a
heartbeat costs the worker nothing.
"""

from collections.abc import Sequence

import numpy as np

from envpool_bridge.shm.layout import ALIGNMENT, PoolShape, SlotLayout
from envpool_bridge.shm.ring import Counters
from envpool_bridge.shm.segment import SharedBytes, reserve

_WORDS = ALIGNMENT // 8
_CUT, _DISABLED, _STEPPED, _REPLAYED = 0, 1, 2, 3  # words of a worker's line
_BOARD_PURPOSE = "the workers' board"


class Progress(Counters):
    """The counters as the supervisor, and a worker that follows a dead one, read them. Process-safety: as Counters."""

    def __init__(self, layout: SlotLayout, buffer: memoryview, first_sequence: int) -> None:
        """Views the counters; `first_sequence` is where this pool's run goes on."""
        super().__init__(layout, buffer)
        self._shape, self._first_step = layout.shape, first_sequence * layout.shape.rollout_length

    @property
    def first_step(self) -> int:
        """Of the run, that this pool begins with."""
        return self._first_step

    def observed(self, part: int) -> int:
        """One more than the step whose observation the part posted last; `first_step` before the first."""
        return self._load(self._observed + part)

    def committed(self, part: int) -> int:
        """Sequences that the part has filled."""
        return self._load(self._committed + part)

    def has_begun(self, part: int) -> bool:
        """Whether the part has posted an observation."""
        return self.observed(part) > self._first_step

    def owes_step(self, part: int) -> bool:
        """Whether the part has all it needs for its next observation: if it does not post it, it hangs."""
        observed = self.observed(part)
        if self.committed(part) * self._shape.rollout_length == observed and self.has_begun(part):
            return self.may_fill(self.committed(part))  # only the slot is to be opened
        return not self.has_begun(part) or self.actions_posted(self._shape.lane_of_part(part)) >= observed

    def awaits_action(self, part: int) -> int | None:
        """The sequence of the part's newest observation, if nobody has acted for it and its slot is open; None if not."""
        observed = self.observed(part)
        acted = self.actions_posted(self._shape.lane_of_part(part)) >= observed
        if acted or not self.has_begun(part) or self.committed(part) * self._shape.rollout_length == observed:
            return None
        return (observed - 1) // self._shape.rollout_length

    def beat(self, parts: Sequence[int]) -> int:
        """A number that grows whenever one of the parts gets on."""
        return sum([self.observed(part) + self.committed(part) for part in parts])


class WorkerBoard:
    """Memory beside the ring in which a worker leaves what its successor needs, and counts what the parent is told.

    Process-safety: a worker writes its own line and its own rows, the parent reads; a successor begins when its predecessor is
    gone.
    """

    def __init__(self, shape: PoolShape, descriptor: int | None = None) -> None:
        """Reserves new memory, or maps that of `descriptor`; owns it either way."""
        # Lines of workers, then lines of parts, then [2, B] episodes.
        lines = (shape.num_workers + shape.num_parts) * ALIGNMENT
        num_bytes = lines + 2 * 8 * shape.num_rows
        self._memory = SharedBytes(reserve(num_bytes, _BOARD_PURPOSE) if descriptor is None else descriptor, num_bytes)
        self._words = self._memory.buffer[:lines].cast("q")
        self._episodes = np.frombuffer(self._memory.buffer, np.int64, offset=lines).reshape(2, shape.num_rows)
        self._shape = shape

    @property
    def descriptor(self) -> int:
        """Of the memory, to be handed to workers."""
        return self._memory.descriptor

    # --- worker
    def count_cut(self, worker: int, episodes: int) -> None:
        """Counts episodes that were cut because something failed."""
        self._words[worker * _WORDS + _CUT] += episodes

    def count_disabled(self, worker: int, rows: int) -> None:
        """Counts rows whose environment is not stepped any more."""
        self._words[worker * _WORDS + _DISABLED] += rows

    def note_stepped(self, worker: int, nanoseconds: int) -> None:
        """Notes when, on the monotonic clock, a worker that follows a dead one was done with its first step."""
        self._words[worker * _WORDS + _STEPPED] = nanoseconds

    def count_replayed(self, worker: int) -> None:
        """Counts a step that is replayed after a resume: a long replay is no hang."""
        self._words[worker * _WORDS + _REPLAYED] += 1

    def begin_episodes(self, part: int, sequence: int, episodes: Sequence[int]) -> None:
        """Notes which episode each row of the part is in, as the slot of `sequence` begins."""
        self._episodes[sequence % 2, self._shape.part_rows(part)] = episodes
        self._words[(self._shape.num_workers + part) * _WORDS] = sequence

    def carry_episodes(self, part: int, sequence: int, is_first: np.ndarray) -> None:
        """Notes the episodes as the slot of `sequence` begins; for a second time, nothing.

        Args:
            part: whose rows.
            sequence: about to begin.
            is_first: [T, R] bool, of the observations that follow the steps of the slot before.
        """
        if self._words[(self._shape.num_workers + part) * _WORDS] < sequence:
            columns = self._shape.part_rows(part)
            self.begin_episodes(part, sequence, self._episodes[(sequence - 1) % 2, columns] + is_first.sum(0))

    def episodes(self, part: int, sequence: int) -> np.ndarray:
        """[R] int64: the episode that each row of the part was in as the slot of `sequence` began."""
        return self._episodes[sequence % 2, self._shape.part_rows(part)].copy()

    # --- parent
    def steps_replayed(self, worker: int) -> int:
        """Returns the steps that the worker, and those before it, have replayed."""
        return self._words[worker * _WORDS + _REPLAYED]

    def episodes_cut(self) -> int:
        """Episodes that were cut, of all workers."""
        return sum(self._words[worker * _WORDS + _CUT] for worker in range(self._shape.num_workers))

    def stepped_ns(self, worker: int) -> int:
        """When the newest process that follows a dead one was done with its first step; 0 before there was one."""
        return self._words[worker * _WORDS + _STEPPED]

    def rows_disabled(self, worker: int) -> int:
        """Rows of the worker that are not stepped any more."""
        return self._words[worker * _WORDS + _DISABLED]

    def close(self) -> None:
        """Lets go of the memory; idempotent."""
        self._words.release()
        del self._episodes
        self._memory.close()
