"""The ring of steps in numpy: the arrays, the insertions and the windows of `storage` and `windows`, in memory of the host."""

import dataclasses
from typing import Any, NamedTuple

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


class _Leaf(NamedTuple):
    """One array of the ring.

    Attributes:
        place: among the leaves of a trajectory.
        ring: [C + .., B, ...].
        flat: the same, [(C + ..) * B, ...].
        before: frames before a slot's first step that its slots have; 0 where there are no observations.
    """

    place: int
    ring: np.ndarray
    flat: np.ndarray
    before: int


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
        leaves, self._structure = jax.tree.flatten(storage_shapes(sizes, shapes))
        arrays = allocate_arrays(leaves)
        self.arrays: Trajectory = jax.tree.unflatten(self._structure, arrays)
        self.position = HostPosition()
        slot = jax.tree.leaves(shapes)
        self._shapes = [tuple(leaf.shape) for leaf in slot]
        self._dtypes = [np.dtype(leaf.dtype) for leaf in slot]
        self._step_leaves, self._observed, self._states = _leaves_by_kind(sizes, self.arrays)
        # A column: times of a window's steps, from the first frame that is needed to the one after the last.
        self._offset = np.arange(-sizes.history, sizes.window_steps + 1)[:, None]
        self._team = np.arange(sizes.rows_per_window)

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in jax.tree.leaves(self.arrays))

    def insert(self, slot: Trajectory) -> None:
        """Copies a trajectory over the oldest; it follows the one before.

        Raises:
            BadEnvOutputError: it has not the shapes that the ring was made for.
        """
        leaves, structure = jax.tree.flatten(slot)
        if structure != self._structure or [leaf.shape for leaf in leaves] != self._shapes or _types(leaves) != self._dtypes:
            self._refuse(slot)
        sizes, position = self._sizes, self.position
        start, beyond = position.next_step, sizes.ring_steps
        after = start + sizes.rollout_length
        for place, ring, _, _ in self._step_leaves:
            ring[start:after] = leaves[place]
        for place, ring, _, before in self._observed:
            frames = leaves[place]
            if before and not position.num_steps:
                ring[beyond + 1 : beyond + 1 + before] = frames[:before]
            ring[beyond] = frames[-1]
            ring[start:after] = frames[before:-1]
        for place, ring, _, _ in self._states:
            ring[start // sizes.rollout_length] = leaves[place]
        position.next_step = 0 if after == beyond else after
        position.num_steps = min(position.num_steps + sizes.rollout_length, beyond)

    def gather(self, begin: np.ndarray, group: np.ndarray) -> Trajectory:
        """Windows, copied; arguments ([N] int64) and shapes as `windows.gather_windows` has them."""
        sizes = self._sizes
        row = group
        if sizes.rows_per_window > 1:
            row = (group[:, None] * sizes.rows_per_window + self._team).ravel()
            begin = begin.repeat(sizes.rows_per_window)
        steps = self._steps_of(begin)
        history, beyond = sizes.history, sizes.ring_steps
        place = steps * sizes.num_rows
        place += row
        found: list[Any] = [None] * len(self._shapes)
        of_steps = place[history:-1]
        # All places are within bounds; any mode but "raise" looks no further.
        for leaf in self._step_leaves:
            found[leaf.place] = leaf.flat.take(of_steps, 0, None, "clip")
        order = None
        if history and self.position.num_steps < beyond:
            # Of the first steps of all, the frames before lie apart.
            order = self.position.num_steps - self._age(begin) + self._offset
        for leaf in self._observed:
            skipped = history - leaf.before
            places = place[skipped:]
            if order is not None and leaf.before:
                apart = (beyond + 1 + leaf.before + order[skipped:]) * sizes.num_rows + row
                places = np.where(order[skipped:] < 0, apart, places)
            found[leaf.place] = leaf.flat.take(places, 0, None, "clip")
        if self._states:
            of_slots = begin // sizes.rollout_length * sizes.num_rows + row
            for leaf in self._states:
                found[leaf.place] = leaf.flat.take(of_slots, 0, None, "clip")
        return self._structure.unflatten(found)

    def newest_steps(self, count: int) -> Trajectory:
        """The newest `count` steps of all rows; as `windows.newest_steps`."""
        size = self._sizes.ring_steps
        steps = (self.position.next_step - count + np.arange(count + 1)) % size
        found: Trajectory = jax.tree.map(lambda ring: ring[steps[:-1]], _without_observations(self.arrays))
        steps[-1] = size
        return dataclasses.replace(found, is_first=self.arrays.is_first[steps])

    def _steps_of(self, begin: np.ndarray) -> np.ndarray:
        """[history + L + 1, N] steps of the ring, from the first frame that windows need to what follows their last step."""
        size = self._sizes.ring_steps
        steps = begin + self._offset
        if self._sizes.history:
            steps %= size
        else:
            np.subtract(steps, size, out=steps, where=steps >= size)
        # What follows the newest step has a place of its own; it is the only last step that ends where the ring does.
        last = steps[-1]
        last[last == self.position.next_step] = size
        return steps

    def _age(self, begin: np.ndarray) -> np.ndarray:
        """As `ring.age_of`."""
        return (self.position.next_step - begin - 1) % self._sizes.ring_steps + 1

    def _refuse(self, slot: Trajectory) -> None:
        expected = jax.tree.unflatten(self._structure, list(zip(self._shapes, self._dtypes, strict=True)))
        came = jax.tree.map(lambda leaf: (tuple(leaf.shape), np.dtype(leaf.dtype)), slot)
        raise BadEnvOutputError(
            f"expected a trajectory of the form that the replay buffer was made for, {expected}: got {came}; a buffer holds "
            f"trajectories of one environment, one number of rows and one rollout_length"
        )


def _types(leaves: list[np.ndarray]) -> list[np.dtype]:
    return [leaf.dtype for leaf in leaves]


def _without_observations(trajectory: Trajectory) -> Trajectory:
    return dataclasses.replace(trajectory, observation=(), is_first=(), agent_state=())


def _leaves_by_kind(sizes: RingSizes, arrays: Trajectory) -> tuple[list[_Leaf], list[_Leaf], list[_Leaf]]:
    """(those of which there is one a step, observations and `is_first`, memory), each in the order of the tree."""
    places = iter(range(len(jax.tree.leaves(arrays))))
    numbers: Trajectory = jax.tree.map(lambda _: next(places), arrays)

    def kind(numbers: Any, rings: Any, observed: bool = False) -> list[_Leaf]:
        return [
            _Leaf(place, ring, ring.reshape(-1, *ring.shape[2:]), len(ring) - sizes.ring_steps - 1 if observed else 0)
            for place, ring in zip(jax.tree.leaves(numbers), jax.tree.leaves(rings), strict=True)
        ]

    return (
        kind(_without_observations(numbers), _without_observations(arrays)),
        kind((numbers.observation, numbers.is_first), (arrays.observation, arrays.is_first), observed=True),
        kind(numbers.agent_state, arrays.agent_state),
    )
