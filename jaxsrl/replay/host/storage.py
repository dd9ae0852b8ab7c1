"""Ring of steps in numpy: arrays, insertion and windows of `device.storage` and `device.windows` in host memory."""

import dataclasses
import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from agents.api import Trajectory
from envpool_bridge.errors import BadEnvOutputError, UserError
from envpool_bridge.limits import free_host_bytes
from jaxsrl.replay.device.storage import storage_shapes, values_per_step
from jaxsrl.replay.host.sample_pool import SampleMemory, is_large, map_large_pages
from jaxsrl.replay.sizes import RingSizes

_ALIGNMENT = 64
_FORM = operator.attrgetter("shape", "dtype")


@dataclasses.dataclass
class HostPosition:
    """`ring_index.RingPosition` in Python integers, without `num_insertions`."""

    next_step: int = 0
    num_steps: int = 0


class _Leaf(NamedTuple):
    """One array of the ring.

    Attributes:
        place: index among the leaves of a trajectory.
        ring: [C + .., B, ...].
        flat: the same memory, [(C + ..) * B, ...].
        before: frames of a slot before its first step; 0 for arrays other than observations.
        memory: pool for windows; None if they are small.
    """

    place: int
    ring: np.ndarray
    flat: np.ndarray
    before: int
    memory: SampleMemory | None

    def at(self, places: np.ndarray) -> np.ndarray:
        """Returns the values at indices of `flat`, all within bounds."""
        # Any mode but "raise" skips the bounds check and writes directly into `out`.
        return self.flat.take(places, 0, None if self.memory is None else self.memory.take(), "clip")

    def by_slot(self, sizes: RingSizes) -> np.ndarray:
        """Returns [C // T, T, B, ...], the same memory."""
        return self.ring[: sizes.ring_steps].reshape(-1, sizes.rollout_length, *self.ring.shape[1:])


class HostStorage:
    """Steps in the bytes of `device.storage`. Thread-safety: one thread at a time.

    Args:
        sizes: Sizes of the ring.
        shapes: Shapes of a slot (see `sizes.make_sizes`).
        arrays: Arrays of a full ring, whose oldest step is the first; None allocates those of an empty one.

    Attributes:
        arrays: Arrays of the ring; see `jaxsrl.replay.device.storage`.
        position: fill state of the ring.

    Raises:
        UserError: memory is insufficient.
    """

    def __init__(self, sizes: RingSizes, shapes: Trajectory, arrays: Trajectory | None = None) -> None:
        self._sizes = sizes
        leaves, self._structure = jax.tree.flatten(storage_shapes(sizes, shapes))
        self.position = HostPosition() if arrays is None else HostPosition(0, sizes.ring_steps)
        self.arrays: Trajectory = arrays or jax.tree.unflatten(self._structure, allocate_arrays(leaves))
        slot = jax.tree.leaves(shapes)
        self._forms = [(tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in slot]
        self._step_leaves, self._observed, self._states = _leaves_by_kind(sizes, self.arrays)
        self._whole = [(leaf.place, leaf.by_slot(sizes)) for leaf in self._step_leaves]
        self._whole += [(leaf.place, leaf.ring) for leaf in self._states]
        self._framed = [
            (leaf.place, leaf.by_slot(sizes), leaf.ring[sizes.ring_steps], leaf.before) for leaf in self._observed
        ]
        self._fields = _fields_of(self.arrays)
        # Offsets of a window's steps in `flat`, as a column, from the first needed frame to the one after the last step.
        self._offset = np.arange(-sizes.history, sizes.window_steps + 1)[:, None] * sizes.num_rows
        # 0-d arrays: numpy would convert a Python number on each use.
        self._num_places, self._next_place = np.array(sizes.ring_steps * sizes.num_rows), np.array(0)

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in jax.tree.leaves(self.arrays))

    def insert(self, slot: Trajectory) -> None:
        """Copies a trajectory over the oldest; it follows the previous one.

        The newest step of a row that it does not continue (`continuing_rows`) is no longer valid.

        Raises:
            BadEnvOutputError: If its shapes differ from the ring's.
        """
        leaves = self._leaves_of(slot)
        sizes, position = self._sizes, self.position
        start, beyond = position.next_step, sizes.ring_steps
        if not position.num_steps:
            for leaf in self._observed:
                leaf.ring[beyond + 1 :] = leaves[leaf.place][: leaf.before]
        number = start // sizes.rollout_length
        *frames, (_, is_first) = [(after, leaves[place][before]) for place, _, after, before in self._framed]
        valid: Any = self.arrays.valid
        valid[start - 1] &= continuing_rows(is_first, frames)
        for place, by_slot in self._whole:
            by_slot[number] = leaves[place]
        for place, by_slot, after, before in self._framed:
            frames = leaves[place]
            by_slot[number] = frames[before:-1]
            after[...] = frames[-1]
        after = start + sizes.rollout_length
        position.next_step = 0 if after == beyond else after
        position.num_steps = min(position.num_steps + sizes.rollout_length, beyond)

    def gather(self, since: np.ndarray) -> Trajectory:
        """Returns copies of windows.

        Args:
            since: [N] int64 starts of `HostSampler.draw`.

        Returns:
            The result of `device.windows.gather_windows`.
        """
        sizes = self._sizes
        if sizes.agents_per_window > 1:
            since = (since[:, None] + np.arange(sizes.agents_per_window)).ravel()
        order = since + self._offset
        self._next_place.fill(self.position.next_step * sizes.num_rows)
        place = order + self._next_place
        place %= self._num_places
        # The step after the newest is stored after the ring's steps, which is its index in this order.
        last = order[-1]
        np.copyto(place[-1], last, where=last >= self._num_places)
        gathered: list[Any] = [None] * len(self._forms)
        of_steps = place[sizes.history : -1]
        for leaf in self._step_leaves:
            gathered[leaf.place] = leaf.at(of_steps)
        partly = sizes.history and self.position.num_steps < sizes.ring_steps
        for leaf in self._observed:
            skipped = sizes.history - leaf.before
            places = place[skipped:]
            if partly and leaf.before:
                places = self._with_frames_before(order[skipped:], places, leaf.before)
            gathered[leaf.place] = leaf.at(places)
        if self._states:
            steps = place[sizes.history] // sizes.num_rows
            rows = place[sizes.history] - steps * sizes.num_rows
            of_slots = steps // sizes.rollout_length * sizes.num_rows + rows
            for leaf in self._states:
                gathered[leaf.place] = leaf.flat.take(of_slots, 0)
        return Trajectory(
            *[gathered[part] if isinstance(part, int) else _filled(gathered, *part) for part in self._fields]
        )

    def newest_steps(self, count: int) -> Trajectory:
        """Returns the newest `count` steps of all rows; see `device.windows.newest_steps`."""
        size = self._sizes.ring_steps
        steps = (self.position.next_step - count + np.arange(count + 1)) % size
        newest: Trajectory = jax.tree.map(lambda ring: ring[steps[:-1]], values_per_step(self.arrays))
        steps[-1] = size
        return dataclasses.replace(newest, is_first=self.arrays.is_first[steps])

    def _with_frames_before(self, order: np.ndarray, places: np.ndarray, before: int) -> np.ndarray:
        """Returns the indices, with those before the first step replaced by indices of the stored earlier frames."""
        sizes = self._sizes
        unfilled = (sizes.ring_steps - self.position.num_steps) * sizes.num_rows
        apart = order + ((sizes.ring_steps + 1 + before) * sizes.num_rows - unfilled)
        return np.where(order < unfilled, apart, places)

    def _leaves_of(self, slot: Trajectory) -> list[np.ndarray]:
        """Returns the slot's arrays in the order of the ring's, if shapes and dtypes match."""
        try:
            leaves = self._structure.flatten_up_to(slot)
            fits = list(map(_FORM, leaves)) == self._forms
        except (ValueError, AttributeError):
            fits, leaves = False, []
        if not fits:
            expected = jax.tree.unflatten(self._structure, self._forms)
            actual = jax.tree.map(lambda leaf: (tuple(leaf.shape), np.dtype(leaf.dtype)), slot)
            raise BadEnvOutputError(
                f"expected a trajectory with the shapes of the replay buffer, {expected}: got {actual}; a buffer stores "
                f"trajectories of one environment, one number of rows and one rollout_length"
            )
        return leaves


def continuing_rows(is_first: np.ndarray, frames: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Returns [B] bool, rows whose new steps are of the episode of the last step, if that is valid.

    After a resume, other rows must not be joined: those of environments that cannot return to their saved state.

    Args:
        is_first: [B] bool, of the first new step.
        frames: [B, ...] each, leaf by leaf: the observations after the last step, and those before the first new one.
    """
    same = [(last == first).all(tuple(range(1, last.ndim))) for last, first in frames]
    return np.logical_and.reduce([~is_first, *same])


def _fields_of(arrays: Trajectory) -> list[int | tuple[Any, int]]:
    """Returns the leaf index of each field; for a field that is a tree, its structure and first leaf index."""
    fields, first = [], 0
    for field in dataclasses.fields(arrays):
        leaves, structure = jax.tree.flatten(getattr(arrays, field.name))
        fields.append(first if structure == jax.tree.structure(0) else (structure, first))
        first += len(leaves)
    return fields


def _filled(leaves: list[Any], structure: Any, first: int) -> Any:
    return structure.unflatten(leaves[first : first + structure.num_leaves])


def _leaves_by_kind(sizes: RingSizes, arrays: Trajectory) -> tuple[list[_Leaf], list[_Leaf], list[_Leaf]]:
    """Returns (arrays with one value per step, observations and `is_first`, recurrent state), each in tree order."""
    places = iter(range(len(jax.tree.leaves(arrays))))
    numbers: Trajectory = jax.tree.map(lambda _: next(places), arrays)

    def kind(numbers: Any, rings: Any, observed: bool = False, steps: int = 1) -> list[_Leaf]:
        listed = []
        for place, ring in zip(jax.tree.leaves(numbers), jax.tree.leaves(rings), strict=True):
            before = len(ring) - sizes.ring_steps - 1 if observed else 0
            shape = (before + steps, sizes.batch_size * sizes.agents_per_window, *ring.shape[2:])
            large = is_large(int(np.prod(shape)) * ring.itemsize)
            memory = SampleMemory(shape, ring.dtype) if large else None
            listed.append(_Leaf(place, ring, ring.reshape(-1, *ring.shape[2:]), before, memory))
        return listed

    steps, observed = values_per_step(numbers), (numbers.observation, numbers.is_first)
    return (
        kind(steps, values_per_step(arrays), steps=sizes.window_steps),
        kind(observed, (arrays.observation, arrays.is_first), observed=True, steps=sizes.window_steps + 1),
        kind(numbers.agent_state, arrays.agent_state),
    )


def allocate_arrays(shapes: Sequence[jax.ShapeDtypeStruct]) -> list[np.ndarray]:
    """Returns zero-filled arrays, adjacent in one block, with all pages touched, so that a lack of memory is an early error.

    Raises:
        UserError: memory is insufficient; the message has the numbers.
    """
    starts, end = [], 0
    for shape in shapes:
        starts.append(end)
        end += -(-_bytes_of(shape) // _ALIGNMENT) * _ALIGNMENT
    block = _allocate(end)
    return [np.ndarray(shape.shape, shape.dtype, block, start) for shape, start in zip(shapes, starts, strict=True)]


def _allocate(num_bytes: int) -> np.ndarray:
    free = free_host_bytes()
    available = num_bytes if free is None else free
    message = (
        f"the replay buffer needs {num_bytes / 2**20:,.1f} MiB of the host's memory, and {available / 2**20:,.1f} MiB are "
        f"available: set replay.capacity to less than {available / max(1, num_bytes):.2f} of what it is, or free memory"
    )
    if num_bytes > available:
        raise UserError(message)
    try:
        # Windows are scattered: large pages speed up address translation.
        memory = map_large_pages(max(num_bytes, 1))
    except OSError as error:
        raise UserError(message) from error
    block = np.frombuffer(memory, np.uint8)
    block.fill(0)
    return block


def _bytes_of(shape: jax.ShapeDtypeStruct) -> int:
    return shape.size * np.dtype(shape.dtype).itemsize
