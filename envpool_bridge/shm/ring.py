"""The trajectory ring: the writer of each value, and the one store that publishes it.

Every counter is 8 bytes, aligned, alone on its cache line, and has a single writer. Payload is written before the
counter that publishes it. Shared memory contains no lock, so a dying process cannot leave one held.

| counter            | writer          | meaning                                                        |
|--------------------|-----------------|----------------------------------------------------------------|
| `stop`             | parent          | non-zero: workers exit                                         |
| `released`         | learner         | slots returned; sequence s may be filled while s < released + num_slots |
| `acted[lane]`      | inference, or a worker that acts itself | steps whose actions are posted         |
| `command[lane]`    | inference       | kind of the newest of those steps: a step or a reset           |
| `observed[part]`   | the part's worker | observations posted                                          |
| `committed[part]`  | the part's worker | slots this part has filled                                   |
| `incarnation[part]`| parent          | number of starts of the part's worker                          |
| `waited[part]`     | the part's worker | total microseconds the worker has waited                     |

Step `k` of a run is stored in slot sequence `k // T` at `t = k % T`; a sequence is stored in slot
`sequence % num_slots`.
"""

import enum
import threading

from envpool_bridge.shm.layout import ALIGNMENT, HEADER_BYTES, SlotLayout

_WORDS = ALIGNMENT // 8


class LaneCommand(enum.IntEnum):
    """Kind of a posted step."""

    STEP = 0
    RESET = 1


class Counters:
    """The counters as plain integers, viewed in the segment's buffer. Process-safety: one writer each; see the table above."""

    def __init__(self, layout: SlotLayout, buffer: memoryview) -> None:
        lanes, parts = layout.shape.num_lanes, layout.shape.num_parts
        self._words = buffer[HEADER_BYTES : HEADER_BYTES + layout.counters_bytes].cast("q")
        self._fence = threading.Lock()
        self._acted = 2
        self._command = self._acted + lanes
        self._observed = self._command + lanes
        self._committed = self._observed + parts
        self._incarnation = self._committed + parts
        self._waited = self._incarnation + parts
        shape = layout.shape
        self._num_slots = shape.num_slots
        self._rollout_length = shape.rollout_length
        self._parts_of_lane = [tuple(shape.parts_of_lane(lane)) for lane in range(lanes)]
        self._parts = range(parts)
        self._observed_words = [self._words_of_part(layout, part) for part in range(parts)]
        self._ready_words = [
            (
                lane,
                (self._acted + lane) * _WORDS,
                [(self._observed + part) * _WORDS for part in shape.parts_of_lane(lane)],
            )
            for lane in range(lanes)
        ]

    def _words_of_part(self, layout: SlotLayout, part: int) -> tuple[int, tuple[int, ...]]:
        """Returns the word of this part's `observed`, and those of the other parts of its lane."""
        parts = layout.shape.parts_of_lane(layout.shape.lane_of_part(part))
        words = {other: (self._observed + other) * _WORDS for other in parts}
        return words.pop(part), tuple(words.values())

    def start_at(self, sequence: int) -> None:
        """Sets every counter as if `sequence` slots had been filled and released. Call it before any worker runs."""
        step = sequence * self._rollout_length
        self._store(1, sequence)
        for lane in range(len(self._parts_of_lane)):
            self._store(self._acted + lane, step)
        for part in self._parts:
            self._store(self._observed + part, step)
            self._store(self._committed + part, sequence)

    def close(self) -> None:
        """Releases the segment's memory."""
        self._words.release()

    # --- parent
    def request_stop(self) -> None:
        """Requests the workers to exit; ring their doorbells afterwards."""
        self._store(0, 1)

    def stop_requested(self) -> bool:
        """Returns whether workers must exit."""
        return self._load(0) != 0

    def start_incarnation(self, part: int) -> int:
        """Counts a (re)start of the part's worker and returns the new number, from 1."""
        self._store(self._incarnation + part, self._load(self._incarnation + part) + 1)
        return self._load(self._incarnation + part)

    def incarnation(self, part: int) -> int:
        """Returns the number of starts of the part's worker."""
        return self._load(self._incarnation + part)

    # --- worker
    def can_fill(self, sequence: int) -> bool:
        """Returns whether the previous reader of the slot of `sequence` has released it."""
        return sequence < self._load(1) + self._num_slots

    def post_observation(self, part: int, step: int) -> bool:
        """Publishes the part's observation of `step`; its payload is already written.

        Returns:
            Whether this made the lane ready, so that inference must be woken. If several parts finish together, at
            least one of them gets True.
        """
        words, (own, others) = self._words, self._observed_words[part]
        words[own] = step + 1
        if others:
            # This store must be visible before the other parts' words are read. A store may pass a later load, even on x86. Taking
            # any lock is a full barrier.
            with self._fence:
                pass
            for word in others:
                if words[word] <= step:
                    return False
        return True

    def commit(self, part: int, sequence: int) -> None:
        """Publishes the part's columns of the slot, which must not be written afterwards."""
        self._store(self._committed + part, sequence + 1)

    def post_waited(self, part: int, seconds: float) -> None:
        """Publishes the total time that the part's worker has waited."""
        self._store(self._waited + part, int(seconds * 1e6))

    def actions_posted(self, lane: int) -> int:
        """Returns the number of steps of the lane whose actions are posted."""
        return self._load(self._acted + lane)

    def is_reset(self, lane: int) -> bool:
        """Returns whether the newest posted step of the lane requests a reset."""
        return self._load(self._command + lane) == LaneCommand.RESET

    # --- inference
    def observations_posted(self, lane: int) -> int:
        """Returns the number of observations that every part of the lane has posted."""
        words, first = self._words, self._observed
        return min([words[(first + part) * _WORDS] for part in self._parts_of_lane[lane]])

    def ready_lanes(self) -> list[int]:
        """Returns the lanes whose newest observation awaits an action."""
        words = self._words
        lanes: list[int] = []
        for lane, acted, observed in self._ready_words:
            step = words[acted]
            for word in observed:
                if words[word] <= step:
                    break
            else:
                lanes.append(lane)
        return lanes

    def is_ready(self, lane: int) -> bool:
        """Returns whether the lane's newest observation awaits an action."""
        return self.observations_posted(lane) > self._load(self._acted + lane)

    def post_actions(self, lane: int, step: int, command: LaneCommand = LaneCommand.STEP) -> None:
        """Publishes the lane's actions of `step`; they are already written."""
        self._store(self._command + lane, int(command))
        self._store(self._acted + lane, step + 1)

    def waited_seconds(self, part: int) -> float:
        """Returns the total time that the part's worker has waited."""
        return self._load(self._waited + part) * 1e-6

    # --- learner
    def num_committed(self) -> int:
        """Returns the number of sequences that every part has filled: all below it are full."""
        words, first = self._words, self._committed
        return min([words[(first + part) * _WORDS] for part in self._parts])

    def release(self, sequence: int) -> None:
        """Releases the slot of `sequence`; sequences are released in order.

        Raises:
            RuntimeError: If it is not the oldest leased sequence (a bug of the caller).
        """
        if sequence != self._load(1):
            raise RuntimeError(f"slots must be released in order: expected sequence {self._load(1)}, got {sequence}")
        self._store(1, sequence + 1)

    def _load(self, index: int) -> int:
        return self._words[index * _WORDS]

    def _store(self, index: int, value: int) -> None:
        self._words[index * _WORDS] = value
