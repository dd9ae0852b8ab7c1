"""Conversion between environment values and stored values: discrete values are stored zero-based, 64 bits in 32."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, LeafSpec, SpecTree
from envpool_bridge.spec.tree import Tree, map_leaves

_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_FEW, _LARGEST_SMALL = 64, 127  # a look-up of so few integers in a set is faster than a reduction of numpy
_SMALL = frozenset(range(_LARGEST_SMALL + 1))
INTEGER_LIMITS = {"bool": (0, 1)} | {name: (int(np.iinfo(name).min), int(np.iinfo(name).max)) for name in _INTEGERS}


def store(spec: SpecTree, values: Tree, out: Tree) -> None:
    """Writes environment values, [..., *stored_shape] a leaf, into `out` in stored form, without validation."""
    map_leaves(_store, spec, values, out)


def restored(spec: SpecTree, stored: Tree, copy: bool = True) -> Tree:
    """Returns stored values, [..., *stored_shape] a leaf, as environment values in the source's dtypes.

    Args:
        spec: spec of the values.
        stored: values in stored form.
        copy: whether to copy leaves that are stored as the environment gave them.
    """
    return map_leaves(partial(_restored, copy), spec, stored)


def start_of(leaf: LeafSpec) -> Any:
    """Returns the offset added to a stored value: int64 numbers, or 0 for arrays."""
    if isinstance(leaf, ArraySpec):
        return 0
    # 64 bits: a difference with a Python integer has the type of the value, in which it may overflow.
    return np.int64(leaf.start) if isinstance(leaf, DiscreteSpec) else leaf.starts


def _store(leaf: LeafSpec, values: Any, out: np.ndarray) -> None:
    if isinstance(leaf, ArraySpec):
        out[...] = values
    else:
        np.subtract(values, start_of(leaf), out=out, casting="unsafe")


def _restored(copy: bool, leaf: LeafSpec, stored: np.ndarray) -> np.ndarray:
    if isinstance(leaf, ArraySpec):
        return stored.astype(leaf.source_dtype, copy=copy)
    return np.add(stored, start_of(leaf), dtype=np.int64).astype(leaf.source_dtype)


class IntegerRange:
    """Check of values that `store` would change into others: integers beyond the dtypes of a leaf, and fractions.

    Args:
        leaf: spec of the values; the range is everything for floating-point numbers.
    """

    def __init__(self, leaf: LeafSpec) -> None:
        self._shape, start = leaf.stored_shape, start_of(leaf)
        self._fits = np.dtype(leaf.dtype) if isinstance(leaf, ArraySpec) else None
        self._is_all = leaf.dtype not in INTEGER_LIMITS
        starts = np.broadcast_to(np.asarray(start, np.int64), self._shape).astype(
            object
        )  # Python's integers do not overflow
        (low, high), (own_low, own_high) = (
            INTEGER_LIMITS.get(leaf.dtype, (0, 0)),
            INTEGER_LIMITS.get(leaf.source_dtype, (0, 0)),
        )
        self._low = np.asarray(np.maximum(starts + low, own_low, dtype=object), object)
        self._high = np.asarray(np.minimum(starts + high, own_high, dtype=object), object)
        # The values from 0 to this one are in the range.
        self._natural = min(self._high.flat, default=0) if max(self._low.flat, default=0) <= 0 else -1

    def first_outside(self, values: np.ndarray) -> tuple[tuple[int, ...], str] | None:
        """Returns (index, expected values) of the first value outside; None if there is none.

        Args:
            values: [..., *stored_shape] integers or floating-point numbers in any dtype; integers for discrete leaves.
        """
        if self._is_all or values.dtype == self._fits or self._are_natural(values):
            return None
        with np.errstate(invalid="ignore"):  # NaN is outside
            good = (values >= self._low) & (values <= self._high)
        if values.dtype.kind == "f":
            good &= values == np.trunc(values)
        if good.all():
            return None
        index = tuple(int(number) for number in np.argwhere(~good)[0])
        place = index[values.ndim - len(self._shape) :]
        return index, f"an integer from {self._low[place]} to {self._high[place]}"

    def _are_natural(self, values: np.ndarray) -> bool:
        """Returns whether all values are integers in the range and not negative; runs at every step."""
        if values.dtype.kind == "f":
            return False
        if values.size <= _FEW and self._natural >= _LARGEST_SMALL and _SMALL.issuperset(values.ravel().tolist()):
            return True
        # No value has a sign, or a bit beyond those of the largest.
        return 0 <= int(np.bitwise_or.reduce(values, axis=None)) <= self._natural


def concatenated(trees: Sequence[Tree], axis: int = 0) -> Tree:
    """Returns trees of arrays joined along an axis."""
    return map_leaves(lambda *arrays: np.concatenate(arrays, axis), *trees)
