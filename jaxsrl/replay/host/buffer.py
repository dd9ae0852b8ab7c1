"""Replay buffer in host memory. It draws the same windows from the same keys as a buffer on a device.

Numpy arrays store the steps, and numpy draws the windows, without a compiled program.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from agents.api import Replay, Sample, Trajectory
from envpool_bridge.errors import UserError
from jaxsrl.machine.compiler_options import compiler_options
from jaxsrl.machine.split_cpu import host_device
from jaxsrl.replay.device.sampler import SampledWindows
from jaxsrl.replay.host.sampler import HostSampler
from jaxsrl.replay.host.storage import HostPosition, HostStorage
from jaxsrl.replay.priority_delay import init_pending
from jaxsrl.replay.schedule import HostPace, make_pace
from jaxsrl.replay.sizes import make_fixed_sizes, make_sizes
from jaxsrl.replay.state import Buffer, Pending

PriorityUpdate = tuple[SampledWindows, Any]
"""Windows, and their priorities [N] that do not affect draws yet."""


class HostBuffer:
    """Experience on the host; all memory is allocated at once. Thread-safety: one thread at a time.

    Args:
        replay: replay part of the agent.
        shapes: Shapes of a slot, with the frames before its first step; `jax.ShapeDtypeStruct` each (see `sizes.make_sizes`).
        steps: trajectory of these shapes that fills the buffer for good, and is not copied; None for an empty buffer.
        num_joined: K, draws that `sample` joins; 1 with priorities.

    Attributes:
        sizes: Sizes of the ring and of the windows.

    Raises:
        UserError: If the sizes are invalid, or memory is insufficient.
    """

    def __init__(
        self, replay: Replay, shapes: Trajectory, steps: Trajectory | None = None, num_joined: int = 1
    ) -> None:
        self._replay = replay
        self.sizes = sizes = make_sizes(replay, shapes) if steps is None else make_fixed_sizes(replay, shapes)
        pace = make_pace(replay.config, sizes.rollout_length * sizes.num_rows)
        gathered = dataclasses.replace(sizes, batch_size=num_joined * sizes.batch_size)
        self._storage = HostStorage(gathered, shapes, _as_ring(steps))
        self._num_joined = num_joined
        self._sampler = HostSampler(sizes)
        if steps is not None:
            length = sizes.rollout_length
            self._sampler.insert(np.asarray(steps.is_first[:length]), np.asarray(steps.valid))
        self._pace = HostPace(pace)
        self._initial_priority = None
        if replay.initial_priority is not None and sizes.priority_exponent:
            self._initial_priority = jax.jit(
                replay.initial_priority, compiler_options=compiler_options(jax.default_backend())
            )

    @property
    def num_bytes(self) -> int:
        """Size of the stored steps and of the selection."""
        return self._storage.num_bytes + self._sampler.num_bytes

    @property
    def num_steps(self) -> int:
        """Number of stored env steps."""
        return self._storage.position.num_steps * self.sizes.num_rows

    @property
    def num_windows(self) -> int:
        """Number of windows that can be drawn."""
        return self._sampler.num_windows

    @property
    def num_stale(self) -> int:
        """Number of priorities that arrived after their windows were overwritten."""
        return self._sampler.num_stale

    def insert(self, slot: Trajectory) -> None:
        """Copies a trajectory of numpy arrays into the buffer; the caller may reuse its memory afterwards.

        Raises:
            BadEnvOutputError: If its shapes differ from the buffer's.
        """
        sizes = self.sizes
        self._storage.insert(slot)
        priority = None
        if self._initial_priority is not None:
            newest = self._storage.newest_steps(sizes.rollout_length + sizes.window_steps - 1)
            # Arguments on the CPU make the program run there, on any default device.
            placed = jax.device_put(newest, host_device())
            priority = np.asarray(self._initial_priority(placed))
        is_first = slot.is_first
        if self._sampler.keeps_starts:
            is_first = is_first[sizes.history : sizes.history + sizes.rollout_length]
        self._sampler.insert(is_first, slot.valid, priority)  # pyright: ignore[reportArgumentType]

    def steps_due(self) -> int:
        """Returns the gradient steps that the newest insertion makes due. Call once per insertion."""
        return self._pace.steps_due(self._sampler.num_windows > 0)

    def sample(self, words: Any) -> tuple[Sample, SampledWindows | None]:
        """Returns N windows in new numpy arrays; and their indices if they have priorities, else None.

        Args:
            words: [W] uint32 (see `philox`), of numpy or of any device: the key, which is consumed. For K draws keys
                [K, W], of numpy: K * N windows return, those of the first key first.

        Raises:
            UserError: If no window can be drawn yet.
        """
        count = self._sampler.num_windows
        if count < 1:
            raise UserError(
                f"a sample needs at least 1 window of {self.sizes.window_steps} steps from {self.sizes.window_start} start: the "
                f"replay buffer has {self.num_steps} env steps of {self.sizes.num_rows} rows and no such window; insert more first"
            )
        since, probability = self._draw(np.asarray(words))
        drawn = self._sampler.make_windows(since, probability) if self.sizes.priority_exponent else None
        sample = Sample(self._storage.gather(since), probability, np.int32(count))  # pyright: ignore[reportArgumentType]
        return sample, drawn

    def _draw(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self._num_joined == 1:
            return self._sampler.draw(words.reshape(-1))
        draws = [self._sampler.draw(each) for each in words]
        since, probability = (np.concatenate(each) for each in zip(*draws, strict=True))
        return since, probability

    def update_priorities(self, drawn: SampledWindows, priority: Any) -> None:
        """Sets the priorities [N] of windows, once they are computed. See `sampler.update_priorities`."""
        self._sampler.update_priorities(drawn, np.asarray(priority))

    def to_arrays(self, sent: Sequence[PriorityUpdate] = ()) -> Buffer:
        """Returns the complete buffer in numpy arrays, in the form of a buffer on a device.

        Args:
            sent: pending priorities, oldest first, at most `priority_delay` of them.

        Returns:
            The buffer. Its steps are views of the buffer's memory: save or copy them before the next insertion.
        """
        selection = jax.tree.map(np.array, self._sampler.arrays())
        return Buffer(self._storage.arrays, selection, self._pace.arrays(), self._pending(sent))

    def from_arrays(self, arrays: Buffer) -> list[PriorityUpdate]:
        """Restores a copy of the result of `to_arrays`, of the host or a device. Returns the pending priorities.

        Raises:
            UserError: If the sizes differ from the buffer's.
        """
        own = self.to_arrays()
        expected, actual = (jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), each) for each in (own, arrays))
        if expected != actual:
            raise UserError(
                f"expected a saved replay buffer of the sizes {expected}: got {actual}; keep replay's settings"
            )
        arrays = jax.device_get(arrays)
        jax.tree.map(lambda ring, saved: np.copyto(ring, saved), self._storage.arrays, arrays.storage)
        self._sampler.restore(arrays.selection)
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


def _as_ring(steps: Trajectory | None) -> Trajectory | None:
    """Returns a trajectory as the arrays of a ring that it fills, without copies; the agent state is that of one trajectory."""
    if steps is None:
        return None
    return dataclasses.replace(steps, agent_state=jax.tree.map(lambda leaf: leaf[None], steps.agent_state))


def _set(array: np.ndarray, place: int, value: Any) -> None:
    array[place] = np.asarray(value)
