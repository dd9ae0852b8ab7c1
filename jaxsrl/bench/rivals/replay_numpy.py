"""Rings in numpy as rivals of a replay buffer: the simplest one, and one with our buffers' rules."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from agents.api import Trajectory
from envpool_bridge.errors import BadEnvOutputError
from jaxsrl.bench.replay_sizes import BenchSizes


class NumpyRing(NamedTuple):
    """A ring with its functions.

    Attributes:
        insert_one: inserts one trajectory.
        sample_one: draws one batch of windows, by field, in new arrays.
        num_bytes: memory in use.
    """

    insert_one: Callable[[], None]
    sample_one: Callable[[], dict[str, np.ndarray]]
    num_bytes: int


def steps_of(sizes: BenchSizes, slot: Trajectory) -> dict[str, Any]:
    """Returns the [T, B, ...] arrays of a slot's steps, all of one length."""
    first, count = sizes.frames - 1, sizes.rollout_length
    steps = _fields(slot)
    return {**steps, **{name: steps[name][first : first + count] for name in _FRAMED}}


def plain_ring(sizes: BenchSizes) -> NumpyRing:
    """Returns an array a field, slices in, fancy indices out.

    It draws from a full ring only, never what follows its newest step (which it does not keep), checks nothing, and says nothing of
    probabilities.
    """
    steps = steps_of(sizes, sizes.slot())
    arrays = {name: np.zeros((sizes.ring_steps, *array.shape[1:]), array.dtype) for name, array in steps.items()}
    rng, position = np.random.default_rng(0), [0]

    def insert_one() -> None:
        start = position[0]
        for name, array in steps.items():
            arrays[name][start : start + sizes.rollout_length] = array
        position[0] = (start + sizes.rollout_length) % sizes.ring_steps

    def sample_one() -> dict[str, np.ndarray]:
        oldest = rng.integers(0, sizes.ring_steps - sizes.frames, sizes.batch_size)
        rows = rng.integers(0, sizes.num_rows, sizes.batch_size)
        begin = position[0] + oldest
        places = (begin + np.arange(sizes.sequence_length)[:, None]) % sizes.ring_steps
        return {
            name: array[places if name in _FRAMED else places[sizes.frames - 1], rows] for name, array in arrays.items()
        }

    return NumpyRing(insert_one, sample_one, sum(array.nbytes for array in arrays.values()))


def careful_ring(sizes: BenchSizes) -> NumpyRing:
    """Returns the same with the rules that our buffers keep: every complete window of a ring that may be half full, and no other.

    It checks what comes, keeps the observation after the newest step and the frames before the first, draws from both, and says how
    likely each window was.
    """
    ring = _CarefulRing(sizes)
    slot = sizes.slot()
    return NumpyRing(lambda: ring.insert(slot), ring.sample, sum(array.nbytes for array in ring.arrays.values()))


_FRAMED = ("observation", "is_first")


def _fields(slot: Trajectory) -> dict[str, Any]:
    steps = {field.name: getattr(slot, field.name) for field in dataclasses.fields(slot)}
    del steps["extras"], steps["agent_state"]
    return steps


class _CarefulRing:
    def __init__(self, sizes: BenchSizes) -> None:
        self.sizes, self.start, self.count = sizes, 0, 0
        self.rng = np.random.default_rng(0)
        self.forms = {name: (array.shape, array.dtype) for name, array in _fields(sizes.slot()).items()}
        self.arrays = {
            name: np.zeros((sizes.ring_steps + sizes.frames * (name in _FRAMED), *shape[1:]), dtype)
            for name, (shape, dtype) in self.forms.items()
        }

    def insert(self, slot: Trajectory) -> None:
        size, steps, history = self.sizes.ring_steps, self.sizes.rollout_length, self.sizes.frames - 1
        for name, array in _fields(slot).items():
            if (array.shape, array.dtype) != self.forms[name]:
                raise BadEnvOutputError(
                    f"expected {name} of {self.forms[name]}: got {array.shape}, {array.dtype}; check it"
                )
            ring = self.arrays[name]
            if name not in _FRAMED:
                ring[self.start : self.start + steps] = array
                continue
            ring[self.start : self.start + steps] = array[history:-1]
            ring[size] = array[-1]
            if not self.count:
                ring[size + 1 :] = array[:history]
        self.start = (self.start + steps) % size
        self.count = min(self.count + steps, size)

    def sample(self) -> dict[str, np.ndarray]:
        size, history, windows = self.sizes.ring_steps, self.sizes.frames - 1, self.sizes.batch_size
        oldest = min(self.count, size - history)
        age = self.rng.integers(1, oldest + 1, windows)
        rows = self.rng.integers(0, self.sizes.num_rows, windows)
        offset = np.arange(-history, 2)[:, None]
        places = (self.start - age + offset) % size
        places[-1] = np.where(age == 1, size, places[-1])
        if history and self.count < size:
            order = self.count - age + offset
            places = np.where(order < 0, size + 1 + history + order, places)
        windows_by_field = {
            name: array[places if name in _FRAMED else places[history], rows] for name, array in self.arrays.items()
        }
        likely = np.float32(1.0 / (oldest * self.sizes.num_rows))
        return {**windows_by_field, "probability": np.full(windows, likely, np.float32)}
