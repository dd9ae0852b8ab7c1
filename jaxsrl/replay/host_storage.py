"""The ring of steps in numpy: the arrays, the insertions and the windows of `storage` and `windows`, in memory of the host."""

import dataclasses
from functools import partial
from typing import Any

import jax
import numpy as np

from agents.api import Trajectory
from envpool_bridge.errors import BadEnvOutputError
from jaxsrl.replay.host_memory import allocate_arrays
from jaxsrl.replay.sizes import RingSizes
from jaxsrl.replay.storage import storage_shapes


@dataclasses.dataclass
class HostPosition:
    """`ring.RingPosition` in numbers of Python, without `num_insertions`."""

    next_step: int = 0
    num_steps: int = 0


class HostStorage:
    """Steps as `storage` keeps them, to the byte. Thread-safety: one thread at a time.

    Attributes:
        arrays: of the ring; see `jaxsrl.replay.storage`.
        position: how far it has been filled.
    """

    def __init__(self, sizes: RingSizes, shapes: Trajectory) -> None:
        """An empty ring.

        Args:
            sizes: of the ring.
            shapes: of a slot (see `sizes.make_sizes`).

        Raises:
            UserError: there is not enough memory.
        """
        self._sizes = sizes
        self._shapes = shapes
        leaves, structure = jax.tree.flatten(storage_shapes(sizes, shapes))
        self.arrays: Trajectory = jax.tree.unflatten(structure, allocate_arrays(leaves))
        self.position = HostPosition()

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in jax.tree.leaves(self.arrays))

    def insert(self, slot: Trajectory) -> None:
        """Copies a trajectory over the oldest; it follows the one before.

        Raises:
            BadEnvOutputError: it has not the shapes that the ring was made for.
        """
        self._require_shapes(slot)
        sizes, position = self._sizes, self.position
        start = position.next_step
        jax.tree.map(partial(_put, start), _without_observations(self.arrays), _without_observations(slot))
        put_observed = partial(_put_observed, sizes, start, position.num_steps == 0)
        jax.tree.map(put_observed, _observations(self.arrays), _observations(slot))
        place = start // sizes.rollout_length
        jax.tree.map(
            lambda ring, new: _put(place, ring, np.asarray(new)[None]), self.arrays.agent_state, slot.agent_state
        )
        after = start + sizes.rollout_length
        position.next_step = 0 if after == sizes.ring_steps else after
        position.num_steps = min(position.num_steps + sizes.rollout_length, sizes.ring_steps)

    def gather(self, begin: np.ndarray, group: np.ndarray) -> Trajectory:
        """Windows, copied; arguments and shapes as `windows.gather_windows` has them."""
        sizes = self._sizes
        rows = (group[:, None] * sizes.rows_per_window + np.arange(sizes.rows_per_window)).reshape(-1)
        begin = np.repeat(begin, sizes.rows_per_window)
        take = partial(_take, sizes.num_rows, rows)
        steps = jax.tree.map(partial(take, self._places(begin, 0)[:-1]), _without_observations(self.arrays))

        def observed(ring: np.ndarray) -> np.ndarray:
            return take(self._places(begin, len(ring) - sizes.ring_steps - 1), ring)

        observation, is_first = jax.tree.map(observed, _observations(self.arrays))
        states = jax.tree.map(partial(take, begin // sizes.rollout_length), self.arrays.agent_state)
        return dataclasses.replace(steps, observation=observation, is_first=is_first, agent_state=states)

    def newest_steps(self, count: int) -> Trajectory:
        """The newest `count` steps of all rows; as `windows.newest_steps`."""
        size = self._sizes.ring_steps
        steps = (self.position.next_step - count + np.arange(count + 1)) % size
        found: Trajectory = jax.tree.map(lambda ring: ring[steps[:-1]], _without_observations(self.arrays))
        steps[-1] = size
        return dataclasses.replace(found, is_first=self.arrays.is_first[steps])

    def _places(self, begin: np.ndarray, before: int) -> np.ndarray:
        """[before + L + 1, N] places in the ring of the steps from `before` before a window's first to the one after its last."""
        size, position = self._sizes.ring_steps, self.position
        offset = np.arange(-before, self._sizes.window_steps + 1)[:, None]
        age = (position.next_step - begin - 1) % size + 1
        places = np.where(offset == age, size, (begin + offset) % size)
        if not before:
            return places
        order = position.num_steps - age + offset
        return np.where(order < 0, size + 1 + before + order, places)

    def _require_shapes(self, slot: Trajectory) -> None:
        expected = jax.tree.map(lambda leaf: (tuple(leaf.shape), np.dtype(leaf.dtype)), self._shapes)
        came = jax.tree.map(lambda leaf: (tuple(leaf.shape), np.dtype(leaf.dtype)), slot)
        if expected != came:
            raise BadEnvOutputError(
                f"expected a trajectory of the form that the replay buffer was made for, {expected}: got {came}; a buffer holds "
                f"trajectories of one environment, one number of rows and one rollout_length"
            )


def _without_observations(trajectory: Trajectory) -> Trajectory:
    return dataclasses.replace(trajectory, observation=(), is_first=(), agent_state=())


def _observations(trajectory: Trajectory) -> tuple[Any, Any]:
    return trajectory.observation, trajectory.is_first


def _put(start: int, ring: np.ndarray, new: np.ndarray) -> None:
    ring[start : start + len(new)] = new


def _put_observed(sizes: RingSizes, start: int, is_new: bool, ring: np.ndarray, frames: np.ndarray) -> None:
    before, beyond = len(frames) - sizes.rollout_length - 1, sizes.ring_steps
    if before and is_new:
        _put(beyond + 1, ring, frames[:before])
    _put(beyond, ring, frames[-1:])
    _put(start, ring, frames[before:-1])


def _take(num_rows: int, rows: np.ndarray, steps: np.ndarray, ring: np.ndarray) -> np.ndarray:
    flat = ring.reshape(len(ring) * num_rows, *ring.shape[2:])
    # All places are within bounds; any mode but "raise" is spared a copy.
    return np.take(flat, steps * num_rows + rows, axis=0, mode="clip")
