"""A replay buffer in memory of the host: as large as that is, and drawing the same windows from the same keys as one on a device.

Steps lie in numpy arrays (`host_storage`); what can be drawn is decided by the functions of `selector`, compiled for the processor.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Array, Replay, Sample, Trajectory
from envpool_bridge.errors import UserError
from jaxsrl.replay.host_storage import HostPosition, HostStorage
from jaxsrl.replay.pace import Pace, PaceState, first_pace_state, make_pace, steps_due
from jaxsrl.replay.pending import no_pending
from jaxsrl.replay.replayed import Buffer, Pending
from jaxsrl.replay.selector import Drawn, Selection, draw, first_selection, insert_slot, num_windows, update_priorities
from jaxsrl.replay.sizes import RingSizes, make_sizes

Sent = tuple[Drawn, Any]
"""Windows, and their priorities [N] that draws do not know yet."""


class HostBuffer:
    """Experience on the host. Thread-safety: one thread at a time.

    Attributes:
        sizes: of the ring and of the windows.
        device: the processor, where draws are computed.
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
        self.device = jax.local_devices(backend="cpu")[0]
        # What is placed on the processor keeps every program that it enters there, whatever the default device is.
        self._selection: Selection = self._placed(jax.jit(partial(first_selection, sizes))())
        self._pace: PaceState = self._placed(first_pace_state(pace))
        self._insert = jax.jit(partial(insert_slot, sizes), donate_argnums=0)
        self._initial_priority = None if replay.initial_priority is None else jax.jit(replay.initial_priority)
        self._draw = jax.jit(partial(draw, sizes))
        self._update = jax.jit(partial(update_priorities, sizes), donate_argnums=0)
        self._num_windows = jax.jit(partial(num_windows, sizes))
        self._due = jax.jit(partial(_due, sizes, pace))

    @property
    def num_bytes(self) -> int:
        """Bytes of the steps that are kept, and of what decides which can be drawn."""
        return self._storage.num_bytes + sum(leaf.nbytes for leaf in jax.tree.leaves(self._selection))

    @property
    def num_steps(self) -> int:
        """Env steps that are there."""
        return self._storage.position.num_steps * self.sizes.num_rows

    @property
    def num_windows(self) -> int:
        """Windows that can be drawn."""
        return int(self._num_windows(self._selection))

    @property
    def num_stale(self) -> int:
        """Priorities that came when their windows could no longer be drawn."""
        return int(self._selection.num_stale)

    def insert(self, slot: Trajectory) -> None:
        """Copies a trajectory of numpy arrays in; its memory may be used again afterwards.

        Raises:
            BadEnvOutputError: it has not the shapes that the buffer was made for.
        """
        sizes = self.sizes
        self._storage.insert(slot)
        priority = None
        if self._initial_priority is not None and sizes.priority_exponent:
            newest = self._storage.newest_steps(sizes.rollout_length + sizes.window_steps - 1)
            priority = self._initial_priority(self._placed(newest))
        is_first = slot.is_first[sizes.history : sizes.history + sizes.rollout_length]
        # Copies: a program that has only been enqueued would still read the slot.
        self._selection = self._insert(self._selection, np.array(is_first), np.array(slot.valid), priority)

    def steps_due(self) -> int:
        """Gradient steps that the newest insertion makes due; to be asked once for each."""
        due, self._pace = self._due(self._pace, self._selection)
        return int(due)

    def sample(self, key: Array) -> tuple[Sample, Drawn]:
        """N windows in numpy arrays of their own, and which they are; `key` is consumed.

        Raises:
            UserError: there is no window yet.
        """
        if key.devices() != {self.device}:
            key = jax.device_put(key, self.device)
        drawn: Drawn = self._draw(self._selection, key)
        count = int(drawn.num_windows)
        if count < 1:
            raise UserError(
                f"a sample needs at least 1 window of {self.sizes.window_steps} steps that begin at {self.sizes.begins} step: the "
                f"replay buffer has {self.num_steps} env steps of {self.sizes.num_rows} rows and no such window; insert more first"
            )
        windows = self._storage.gather(np.asarray(drawn.begin), np.asarray(drawn.group))
        probability, number = np.asarray(drawn.probability), np.int32(count)
        return Sample(windows, probability, number), drawn  # pyright: ignore[reportArgumentType]

    def update_priorities(self, drawn: Drawn, priority: Any) -> None:
        """Takes in the priorities [N] of windows; waits until they are computed. See `selector.update_priorities`."""
        self._selection = self._update(self._selection, drawn, np.asarray(priority))

    def to_arrays(self, sent: Sequence[Sent] = ()) -> Buffer:
        """All of the buffer in numpy arrays, in the form that a buffer on a device has.

        Args:
            sent: priorities on their way, oldest first, at most `priority_delay` of them.

        Returns:
            The buffer. Its steps are the buffer's own memory: save or copy them before the next insertion.
        """
        # Copies: what numpy sees of an array on the processor is the array's own memory, which the next update takes.
        selection, pace = jax.tree.map(np.array, (self._selection, self._pace))
        return Buffer(self._storage.arrays, selection, pace, self._pending(sent))

    def from_arrays(self, arrays: Buffer) -> list[Sent]:
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
        # Copied by a program: an array that shares memory with numpy's could not be updated in place.
        copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))
        self._selection, self._pace = copy(self._placed((arrays.selection, arrays.pace)))
        position = arrays.selection.position
        self._storage.position = HostPosition(int(position.next_step), int(position.num_steps))
        return self._sent(arrays.pending)

    def _pending(self, sent: Sequence[Sent]) -> Any:
        pending: Any = jax.device_get(no_pending(self.sizes))
        if not isinstance(pending, Pending):
            return ()
        pending = jax.tree.map(np.array, pending)
        for place, (drawn, priority) in enumerate(sent):
            jax.tree.map(lambda array, new, place=place: _set(array, place, new), pending.drawn, drawn)
            _set(pending.priority, place, priority)
        return Pending(pending.drawn, pending.priority, np.int32(len(sent)))  # pyright: ignore[reportArgumentType]

    def _sent(self, pending: Any) -> list[Sent]:
        if not isinstance(pending, Pending):
            return []
        count, delay = int(pending.num_steps), self.sizes.priority_delay
        places = range(count) if count < delay else [place % delay for place in range(count, count + delay)]
        return [
            (
                self._placed(jax.tree.map(lambda array, place=place: np.array(array[place]), pending.drawn)),
                pending.priority[place],
            )
            for place in places
        ]

    def _placed(self, tree: Any) -> Any:
        return jax.device_put(tree, self.device)


def _due(sizes: RingSizes, pace: Pace, state: PaceState, selection: Selection) -> tuple[Array, PaceState]:
    return steps_due(pace, state, num_windows(sizes, selection) > 0)


def _set(array: np.ndarray, place: int, value: Any) -> None:
    array[place] = np.asarray(value)
