"""The ring of steps in numpy: the arrays, the insertions and the windows of `storage` and `windows`, in memory of the host."""

import dataclasses
import operator
from typing import Any, NamedTuple

import jax
import numpy as np

from agents.api import Trajectory
from envpool_bridge.errors import BadEnvOutputError
from jaxsrl.replay.host_memory import allocate_arrays
from jaxsrl.replay.sample_memory import SampleMemory, is_large
from jaxsrl.replay.sizes import RingSizes
from jaxsrl.replay.storage import storage_shapes

_FORM = operator.attrgetter("shape", "dtype")


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
        memory: of windows; None where they are small.
    """

    place: int
    ring: np.ndarray
    flat: np.ndarray
    before: int
    memory: SampleMemory | None

    def at(self, places: np.ndarray) -> np.ndarray:
        """What lies at these places of `flat`, all of them within bounds."""
        # Any mode but "raise" looks no further, and writes directly into what it is given.
        return self.flat.take(places, 0, None if self.memory is None else self.memory.take(), "clip")

    def by_slot(self, sizes: RingSizes) -> np.ndarray:
        """[C // T, T, B, ...], the same memory."""
        return self.ring[: sizes.ring_steps].reshape(-1, sizes.rollout_length, *self.ring.shape[1:])


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
        self._forms = [(tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in slot]
        self._step_leaves, self._observed, self._states = _leaves_by_kind(sizes, self.arrays)
        self._whole = [(leaf.place, leaf.by_slot(sizes)) for leaf in self._step_leaves]
        self._whole += [(leaf.place, leaf.ring) for leaf in self._states]
        self._framed = [
            (leaf.place, leaf.by_slot(sizes), leaf.ring[sizes.ring_steps], leaf.before) for leaf in self._observed
        ]
        # Of no dimension: numpy takes such arrays as they are, where it would convert a number each time.
        self._num_rows, self._ring_steps = np.array(sizes.num_rows), np.array(sizes.ring_steps)
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
        leaves = self._leaves_of(slot)
        sizes, position = self._sizes, self.position
        start, beyond = position.next_step, sizes.ring_steps
        if not position.num_steps:
            for leaf in self._observed:
                leaf.ring[beyond + 1 :] = leaves[leaf.place][: leaf.before]
        number = start // sizes.rollout_length
        for place, by_slot in self._whole:
            by_slot[number] = leaves[place]
        for place, by_slot, after, before in self._framed:
            frames = leaves[place]
            by_slot[number] = frames[before:-1]
            after[...] = frames[-1]
        after = start + sizes.rollout_length
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
        place = steps * self._num_rows
        place += row
        found: list[Any] = [None] * len(self._forms)
        of_steps = place[history:-1]
        for leaf in self._step_leaves:
            found[leaf.place] = leaf.at(of_steps)
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
            found[leaf.place] = leaf.at(places)
        if self._states:
            of_slots = begin // sizes.rollout_length * sizes.num_rows + row
            for leaf in self._states:
                found[leaf.place] = leaf.flat.take(of_slots, 0)
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
        steps = begin + self._offset
        steps %= self._ring_steps
        # What follows the newest step has a place of its own; it is the only last step that ends where the ring does.
        last = steps[-1]
        last[last == self.position.next_step] = self._ring_steps
        return steps

    def _age(self, begin: np.ndarray) -> np.ndarray:
        """As `ring.age_of`."""
        return (self.position.next_step - begin - 1) % self._sizes.ring_steps + 1

    def _leaves_of(self, slot: Trajectory) -> list[np.ndarray]:
        """The slot's arrays in the order of the ring's, if it has the form of the ring."""
        try:
            leaves = self._structure.flatten_up_to(slot)
            fits = list(map(_FORM, leaves)) == self._forms
        except (ValueError, AttributeError):
            fits, leaves = False, []
        if not fits:
            expected = jax.tree.unflatten(self._structure, self._forms)
            came = jax.tree.map(lambda leaf: (tuple(leaf.shape), np.dtype(leaf.dtype)), slot)
            raise BadEnvOutputError(
                f"expected a trajectory of the form that the replay buffer was made for, {expected}: got {came}; a buffer holds "
                f"trajectories of one environment, one number of rows and one rollout_length"
            )
        return leaves


def _without_observations(trajectory: Trajectory) -> Trajectory:
    return dataclasses.replace(trajectory, observation=(), is_first=(), agent_state=())


def _leaves_by_kind(sizes: RingSizes, arrays: Trajectory) -> tuple[list[_Leaf], list[_Leaf], list[_Leaf]]:
    """(those of which there is one a step, observations and `is_first`, memory), each in the order of the tree."""
    places = iter(range(len(jax.tree.leaves(arrays))))
    numbers: Trajectory = jax.tree.map(lambda _: next(places), arrays)

    def kind(numbers: Any, rings: Any, observed: bool = False, steps: int = 1) -> list[_Leaf]:
        found = []
        for place, ring in zip(jax.tree.leaves(numbers), jax.tree.leaves(rings), strict=True):
            before = len(ring) - sizes.ring_steps - 1 if observed else 0
            shape = (before + steps, sizes.batch_size * sizes.rows_per_window, *ring.shape[2:])
            large = is_large(int(np.prod(shape)) * ring.itemsize)
            memory = SampleMemory(shape, ring.dtype) if large else None
            found.append(_Leaf(place, ring, ring.reshape(-1, *ring.shape[2:]), before, memory))
        return found

    steps, observed = _without_observations(numbers), (numbers.observation, numbers.is_first)
    return (
        kind(steps, _without_observations(arrays), steps=sizes.window_steps),
        kind(observed, (arrays.observation, arrays.is_first), observed=True, steps=sizes.window_steps + 1),
        kind(numbers.agent_state, arrays.agent_state),
    )
