"""Conversion of stored actions to the form of `action_space.sample()`, one by one or as one array."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from envpool_bridge.spec.encoding import restored
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, LeafSpec, SpecTree
from envpool_bridge.spec.tree import Tree, items, leaves, shown_path, unflatten

_MAX_KEPT = 4096  # integers of a Discrete


class ActionReader:
    """Reader of actions of several rows, [R, ...] a leaf, as a list of one action for each row.

    Args:
        spec: spec of one action.
        clip: whether continuous values are clipped to the space's bounds, as is usual with Gaussian policies.
    """

    def __init__(self, spec: SpecTree, clip: bool) -> None:
        self._spec = spec
        self._readers = [_LeafReader(leaf, clip) for leaf in leaves(spec)]
        self._only = self._readers[0] if isinstance(spec, LeafSpec) else None
        self._floats = [(path, place) for place, (path, leaf) in enumerate(items(spec)) if isinstance(leaf, ArraySpec)]

    def read(self, action: Tree) -> Sequence[Any]:
        """Returns one action for each row."""
        if self._only is not None:
            return self._only.read(action)
        columns = [reader.read(values) for reader, values in zip(self._readers, leaves(action), strict=True)]
        return [unflatten(self._spec, row) for row in zip(*columns, strict=True)]

    def read_together(self, action: Tree) -> Tree:
        """Returns the actions of all rows, [R, ...] a leaf, in the form of a vector environment: copies."""
        if self._only is not None:
            return self._only.read_together(action)
        arrays = [reader.read_together(values) for reader, values in zip(self._readers, leaves(action), strict=True)]
        return unflatten(self._spec, arrays)

    def first_not_finite(self, action: Tree) -> tuple[int, str] | None:
        """Returns (row, description) of the first non-finite action, or None."""
        if not self._floats:
            return None
        arrays = leaves(action)
        for path, place in self._floats:
            good = np.isfinite(arrays[place])
            if not good.all():
                row = int(np.argwhere(~good)[0][0])
                return row, f"{shown_path('action', path)} is {arrays[place][row]}"
        return None


class _LeafReader:
    """Reader of one leaf."""

    def __init__(self, spec: LeafSpec, clip: bool) -> None:
        self._spec = spec
        self._low = self._high = None
        self._discrete: dict[int, Any] | None = None
        if isinstance(spec, DiscreteSpec):
            self._discrete = _DiscreteValues(spec)
        elif clip and isinstance(spec, ArraySpec):
            self._low, self._high = spec.bound("low"), spec.bound("high")

    def read(self, values: np.ndarray) -> list[Any]:
        """Returns numpy integers, or arrays in the space's dtype; one for each row."""
        if self._discrete is not None:
            return [*map(self._discrete.__getitem__, values.tolist())]
        return list(self.read_together(values))

    def read_together(self, values: np.ndarray) -> np.ndarray:
        """Returns [R, ...] in the space's dtype."""
        given = restored(self._spec, values)
        if self._low is not None or self._high is not None:
            np.clip(given, self._low, self._high, out=given)
        return given


class _DiscreteValues(dict[int, Any]):
    """Numpy integers of a Discrete by stored value. A value outside the space is for the environment to judge.

    Only the first values are kept: a Discrete of millions would take seconds and hundreds of megabytes in each worker.
    """

    def __init__(self, spec: DiscreteSpec) -> None:
        self._start, self._make = spec.start, np.dtype(spec.source_dtype).type
        super().__init__((stored, self._make(spec.start + stored)) for stored in range(min(spec.num_values, _MAX_KEPT)))

    def __missing__(self, stored: int) -> Any:
        return self._make(self._start + stored)
