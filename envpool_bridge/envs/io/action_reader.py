"""Stored actions as the environments' own `action_space.sample()` would give them, one by one or as one array."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from envpool_bridge.spec.encoding import restored
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, LeafSpec, SpecTree
from envpool_bridge.spec.tree import Tree, items, leaves, shown_path, unflatten


class ActionReader:
    """Reads actions of several rows, [R, ...] a leaf, as a list of one action a row."""

    def __init__(self, spec: SpecTree, clip: bool) -> None:
        """For actions of this spec.

        Args:
            spec: of one action.
            clip: whether continuous values are clipped to the space's bounds, as the field's Gaussian policies expect.
        """
        self._spec = spec
        self._readers = [_LeafReader(leaf, clip) for leaf in leaves(spec)]
        self._only = self._readers[0] if isinstance(spec, LeafSpec) else None
        self._floats = [(path, place) for place, (path, leaf) in enumerate(items(spec)) if isinstance(leaf, ArraySpec)]

    def read(self, action: Tree) -> Sequence[Any]:
        """One action a row."""
        if self._only is not None:
            return self._only.read(action)
        columns = [reader.read(values) for reader, values in zip(self._readers, leaves(action), strict=True)]
        return [unflatten(self._spec, row) for row in zip(*columns, strict=True)]

    def read_together(self, action: Tree) -> Tree:
        """The actions of all rows, [R, ...] a leaf, as a vector environment takes them: copies."""
        if self._only is not None:
            return self._only.read_together(action)
        arrays = [reader.read_together(values) for reader, values in zip(self._readers, leaves(action), strict=True)]
        return unflatten(self._spec, arrays)

    def first_not_finite(self, action: Tree) -> tuple[int, str] | None:
        """(row, what it is) of the first action that is not finite; None if all are."""
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
    """Reads one leaf."""

    def __init__(self, spec: LeafSpec, clip: bool) -> None:
        self._spec = spec
        self._low = self._high = None
        self._discrete: dict[int, Any] = {}
        if isinstance(spec, DiscreteSpec):
            make = np.dtype(spec.source_dtype).type
            self._discrete = {stored: make(spec.start + stored) for stored in range(spec.num_values)}
        elif clip and isinstance(spec, ArraySpec):
            self._low, self._high = spec.bound("low"), spec.bound("high")

    def read(self, values: np.ndarray) -> list[Any]:
        """Numpy integers, or arrays in the space's dtype; one a row."""
        if self._discrete:
            return [*map(self._discrete.__getitem__, values.tolist())]
        return list(self.read_together(values))

    def read_together(self, values: np.ndarray) -> np.ndarray:
        """[R, ...] in the space's dtype."""
        given = restored(self._spec, values)
        if self._low is not None or self._high is not None:
            np.clip(given, self._low, self._high, out=given)
        return given
