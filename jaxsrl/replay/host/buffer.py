"""A replay buffer in memory of the host: as large as that is, and drawing the same windows from the same keys as one on a device.

Steps lie in numpy arrays (`host_storage`), and numpy decides what is drawn (`host_selector`): no compiled program is waited for.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from agents.api import Replay, Sample, Trajectory
from envpool_bridge.errors import UserError
from jaxsrl.machine.split_cpu import host_device
from jaxsrl.replay.device.sampler import SampledWindows
from jaxsrl.replay.host.sampler import HostSampler
from jaxsrl.replay.host.storage import HostPosition, HostStorage
from jaxsrl.replay.priority_delay import init_pending
from jaxsrl.replay.schedule import HostPace, make_pace
from jaxsrl.replay.sizes import make_sizes
from jaxsrl.replay.state import Buffer, Pending

PriorityUpdate = tuple[SampledWindows, Any]
"""Windows, and their priorities [N] that draws do not know yet."""


class HostBuffer:
    """Experience on the host. Thread-safety: one thread at a time.

    Attributes:
        sizes: of the ring and of the windows.
    """

    def __init__(self, replay: Replay, shapes: Trajectory) -> None:
        """An empty buffer, all of its memory allocated.

        Args:
            replay: what the agent learns from.
            shapes: of a slot, with the frames before its first step; `jax.ShapeDtypeStruct` each (see `sizes.make_sizes`).

        Raises:
            UserError: the buffer cannot be, or there is not enough memory for it.
        """
        self._replay = replay
        self.sizes = sizes = make_sizes(replay, shapes)
        pace = make_pace(replay.config, sizes.rollout_length * sizes.num_rows)
        self._storage = HostStorage(sizes, shapes)
        self._selector = HostSampler(sizes)
        self._pace = HostPace(pace)
        self._initial_priority = None
        if replay.initial_priority is not None and sizes.priority_exponent:
            self._initial_priority = jax.jit(replay.initial_priority)

    @property
    def num_bytes(self) -> int:
        """Returns bytes of the steps that are kept, and of what decides which can be drawn."""
        return self._storage.num_bytes + self._selector.num_bytes

    @property
    def num_steps(self) -> int:
        """Env steps that are there."""
        return self._storage.position.num_steps * self.sizes.num_rows

    @property
    def num_windows(self) -> int:
        """Windows that can be drawn."""
        return self._selector.num_windows

    @property
    def num_stale(self) -> int:
        """Priorities that came when their windows could no longer be drawn."""
        return self._selector.num_stale

    def insert(self, slot: Trajectory) -> None:
        """Copies a trajectory of numpy arrays in; its memory may be used again afterwards.

        Raises:
            BadEnvOutputError: it has not the shapes that the buffer was made for.
        """
        sizes = self.sizes
        self._storage.insert(slot)
        priority = None
        if self._initial_priority is not None:
            newest = self._storage.newest_steps(sizes.rollout_length + sizes.window_steps - 1)
            # Placed there, they keep the program on the processor, whatever the default device is.
            placed = jax.device_put(newest, host_device())
            priority = np.asarray(self._initial_priority(placed))
        is_first = slot.is_first
        if self._selector.keeps_starts:
            is_first = is_first[sizes.history : sizes.history + sizes.rollout_length]
        self._selector.insert(is_first, slot.valid, priority)  # pyright: ignore[reportArgumentType]

    def steps_due(self) -> int:
        """Gradient steps that the newest insertion makes due; to be asked once for each."""
        return self._pace.steps_due(self._selector.num_windows > 0)

    def sample(self, words: Any) -> tuple[Sample, SampledWindows | None]:
        """N windows in numpy arrays of their own; and which they are, where they have priorities (see `drawn`).

        Args:
            words: [W] uint32 (`random_numbers`), of numpy or of any device: the key, which is consumed.

        Raises:
            UserError: there is no window yet.
        """
        count = self._selector.num_windows
        if count < 1:
            raise UserError(
                f"a sample needs at least 1 window of {self.sizes.window_steps} steps from {self.sizes.window_start} start: the "
                f"replay buffer has {self.num_steps} env steps of {self.sizes.num_rows} rows and no such window; insert more first"
            )
        since, probability = self._selector.draw(np.asarray(words))
        drawn = self._selector.drawn(since, probability) if self.sizes.priority_exponent else None
        sample = Sample(self._storage.gather(since), probability, np.int32(count))  # pyright: ignore[reportArgumentType]
        return sample, drawn

    def drawn(self, words: Any) -> SampledWindows:
        """Which windows `sample` draws with this key."""
        return self._selector.drawn(*self._selector.draw(np.asarray(words)))

    def update_priorities(self, drawn: SampledWindows, priority: Any) -> None:
        """Takes in the priorities [N] of windows; waits until they are computed. See `selector.update_priorities`."""
        self._selector.update_priorities(drawn, np.asarray(priority))

    def to_arrays(self, sent: Sequence[PriorityUpdate] = ()) -> Buffer:
        """Returns all of the buffer in numpy arrays, in the form that a buffer on a device has.

        Args:
            sent: priorities on their way, oldest first, at most `priority_delay` of them.

        Returns:
            The buffer. Its steps are the buffer's own memory: save or copy them before the next insertion.
        """
        selection = jax.tree.map(np.array, self._selector.arrays())
        return Buffer(self._storage.arrays, selection, self._pace.arrays(), self._pending(sent))

    def from_arrays(self, arrays: Buffer) -> list[PriorityUpdate]:
        """Goes on from what `to_arrays` gave, here or on a device; copies it. Returns the priorities on their way.

        Raises:
            UserError: it is of a buffer with other sizes.
        """
        mine = self.to_arrays()
        expected, came = (jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), each) for each in (mine, arrays))
        if expected != came:
            raise UserError(
                f"expected a saved replay buffer of the sizes {expected}: got {came}; keep replay's settings"
            )
        arrays = jax.device_get(arrays)
        jax.tree.map(lambda ring, saved: np.copyto(ring, saved), self._storage.arrays, arrays.storage)
        self._selector.restore(arrays.selection)
        self._pace.restore(arrays.pace)
        position = arrays.selection.position
        self._storage.position = HostPosition(int(position.next_step), int(position.num_steps))
        return self._sent(arrays.pending)

    def _pending(self, sent: Sequence[PriorityUpdate]) -> Any:
        pending: Any = jax.device_get(init_pending(self.sizes))
        if not isinstance(pending, Pending):
            return ()
        pending = jax.tree.map(np.array, pending)
        for place, (drawn, priority) in enumerate(sent):
            jax.tree.map(lambda array, new, place=place: _set(array, place, new), pending.drawn, drawn)
            _set(pending.priority, place, priority)
        return Pending(pending.drawn, pending.priority, np.int32(len(sent)))  # pyright: ignore[reportArgumentType]

    def _sent(self, pending: Any) -> list[PriorityUpdate]:
        if not isinstance(pending, Pending):
            return []
        count, delay = int(pending.num_steps), self.sizes.priority_delay
        places = range(count) if count < delay else [place % delay for place in range(count, count + delay)]
        return [
            (
                jax.tree.map(lambda array, place=place: np.array(array[place]), pending.drawn),
                pending.priority[place],
            )
            for place in places
        ]


def _set(array: np.ndarray, place: int, value: Any) -> None:
    array[place] = np.asarray(value)
