"""Progress counters and recovery data of workers, in shared memory.

The counters that publish steps serve as the heartbeat, at no cost to the worker. They only grow: a worker that owes a
step and does not advance them hangs.
"""

from collections.abc import Sequence

import numpy as np

from envpool_bridge.shm.layout import ALIGNMENT, PoolShape, SlotLayout
from envpool_bridge.shm.ring import Counters
from envpool_bridge.shm.segment import SharedBytes, reserve

_WORDS = ALIGNMENT // 8
_CUT, _DISABLED, _STEPPED, _REPLAYED, _REPAIRED = range(5)  # words of a worker's line
_BOARD_PURPOSE = "the workers' board"


class ProgressCounters(Counters):
    """The counters as the supervisor and a replacement worker read them. Process-safety: as Counters.

    Args:
        layout: layout of the segment.
        buffer: the whole segment.
        first_sequence: first sequence of this pool.
    """

    def __init__(self, layout: SlotLayout, buffer: memoryview, first_sequence: int) -> None:
        super().__init__(layout, buffer)
        self._shape, self._first_step = layout.shape, first_sequence * layout.shape.rollout_length

    @property
    def first_step(self) -> int:
        """First step of this pool in the run."""
        return self._first_step

    def observed(self, part: int) -> int:
        """Returns one more than the step of the part's last posted observation; `first_step` before the first."""
        return self._load(self._observed + part)

    def committed(self, part: int) -> int:
        """Returns the number of sequences that the part has filled."""
        return self._load(self._committed + part)

    def has_started(self, part: int) -> bool:
        """Returns whether the part has posted an observation."""
        return self.observed(part) > self._first_step

    def owes_step(self, part: int) -> bool:
        """Returns whether the part has all it needs for its next observation; if it does not post it, it hangs."""
        observed = self.observed(part)
        if self.committed(part) * self._shape.rollout_length == observed and self.has_started(part):
            return self.can_fill(self.committed(part))  # only the next slot must be opened
        return not self.has_started(part) or self.actions_posted(self._shape.lane_of_part(part)) >= observed

    def awaits_action(self, part: int) -> int | None:
        """Returns the sequence of the part's newest observation if it awaits an action and its slot is open, else None."""
        observed = self.observed(part)
        acted = self.actions_posted(self._shape.lane_of_part(part)) >= observed
        if acted or not self.has_started(part) or self.committed(part) * self._shape.rollout_length == observed:
            return None
        return (observed - 1) // self._shape.rollout_length

    def beat(self, parts: Sequence[int]) -> int:
        """Returns a number that grows whenever one of the parts makes progress."""
        return sum([self.observed(part) + self.committed(part) for part in parts])


class WorkerBoard:
    """Memory next to the ring with a worker's recovery data and the counts it reports to the parent.

    Process-safety: a worker writes its own line and its own rows, the parent reads. A successor starts only after its
    predecessor has died.

    Args:
        shape: division of the rows.
        descriptor: maps this memory; None reserves new memory. Either way the board owns it.
    """

    def __init__(self, shape: PoolShape, descriptor: int | None = None) -> None:
        # Lines of workers, then lines of parts, then [2, B] episodes, then [num_slots] stages.
        lines = (shape.num_workers + shape.num_parts) * ALIGNMENT
        num_bytes = lines + 8 * (2 * shape.num_rows + shape.num_slots)
        self._memory = SharedBytes(reserve(num_bytes, _BOARD_PURPOSE) if descriptor is None else descriptor, num_bytes)
        self._words = self._memory.buffer[:lines].cast("q")
        words = np.frombuffer(self._memory.buffer, np.int64, offset=lines)
        self._episodes = words[: 2 * shape.num_rows].reshape(2, shape.num_rows)
        self._stages = words[2 * shape.num_rows :]
        self._shape = shape

    @property
    def descriptor(self) -> int:
        """Descriptor of the memory, to be passed to workers."""
        return self._memory.descriptor

    # --- worker
    def count_cut(self, worker: int, episodes: int) -> None:
        """Counts episodes that were cut after a failure."""
        self._words[worker * _WORDS + _CUT] += episodes

    def count_disabled(self, worker: int, rows: int) -> None:
        """Counts rows whose environment is no longer stepped."""
        self._words[worker * _WORDS + _DISABLED] += rows

    def start_disabled(self, worker: int) -> None:
        """Sets the count of disabled rows to 0 for a new process of the worker, which makes all of its rows."""
        self._words[worker * _WORDS + _DISABLED] = 0

    def record_stepped(self, worker: int, nanoseconds: int) -> None:
        """Records when a replacement worker finished its first step, on the monotonic clock."""
        self._words[worker * _WORDS + _STEPPED] = nanoseconds

    def count_replayed(self, worker: int) -> None:
        """Counts a step that is replayed after a resume, so that a long replay does not look like a hang."""
        self._words[worker * _WORDS + _REPLAYED] += 1

    def count_repaired(self, worker: int, outputs: int) -> None:
        """Counts outputs of environments that were repaired."""
        self._words[worker * _WORDS + _REPAIRED] += outputs

    def record_episodes(self, part: int, sequence: int, episodes: Sequence[int]) -> None:
        """Records the episode of each row of the part at the start of the slot of `sequence`."""
        self._episodes[sequence % 2, self._shape.part_rows(part)] = episodes
        self._words[(self._shape.num_workers + part) * _WORDS] = sequence

    def carry_episodes(self, part: int, sequence: int, starts: np.ndarray) -> None:
        """Records the episodes at the start of the slot of `sequence`; a second call does nothing.

        Args:
            part: part of the rows.
            sequence: sequence that starts.
            starts: [T, R] bool, whether an episode starts with the observations that follow the steps of the previous slot.
        """
        if self._words[(self._shape.num_workers + part) * _WORDS] < sequence:
            columns = self._shape.part_rows(part)
            self.record_episodes(part, sequence, self._episodes[(sequence - 1) % 2, columns] + starts.sum(0))

    def episodes(self, part: int, sequence: int) -> np.ndarray:
        """Returns the episode of each row of the part at the start of the slot of `sequence`, [R] int64."""
        return self._episodes[sequence % 2, self._shape.part_rows(part)].copy()

    def stage(self, sequence: int) -> int:
        """Returns the stage of resets in the slot of `sequence`."""
        return int(self._stages[sequence % self._shape.num_slots])

    # --- parent
    def start_stages(self, first_sequence: int, stages: Sequence[int], initial: int | None) -> int | None:
        """Sets the stage of resets in each of the first slots; returns that of the slots after them.

        Args:
            first_sequence: first sequence of the pool.
            stages: Stages of each slot and of those after them; () for `initial` everywhere.
            initial: stage of the spec; None where resets have none.
        """
        *first, after = stages or (initial,) * (self._shape.num_slots + 1)
        for sequence, stage in enumerate(first, first_sequence):
            if stage is not None:
                self.set_stage(sequence, stage)
        return after

    def set_stage(self, sequence: int, stage: int) -> None:
        """Sets the stage of resets in the slot of `sequence`, before a worker may fill it."""
        self._stages[sequence % self._shape.num_slots] = stage

    def steps_replayed(self, worker: int) -> int:
        """Returns the number of steps that the worker and its predecessors have replayed."""
        return self._words[worker * _WORDS + _REPLAYED]

    def episodes_cut(self) -> int:
        """Returns the number of episodes that were cut, of all workers."""
        return sum(self._words[worker * _WORDS + _CUT] for worker in range(self._shape.num_workers))

    def outputs_repaired(self) -> int:
        """Returns the number of outputs that were repaired, of all workers."""
        return sum(self._words[worker * _WORDS + _REPAIRED] for worker in range(self._shape.num_workers))

    def stepped_ns(self, worker: int) -> int:
        """Returns when the newest replacement worker finished its first step; 0 if there was none."""
        return self._words[worker * _WORDS + _STEPPED]

    def rows_disabled(self, worker: int) -> int:
        """Returns the number of rows that the worker's newest process no longer steps."""
        return self._words[worker * _WORDS + _DISABLED]

    def close(self) -> None:
        """Releases the memory; idempotent."""
        self._words.release()
        del self._episodes, self._stages
        self._memory.close()
