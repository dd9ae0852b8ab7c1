"""Conversion between environment values and stored values: discrete values are stored zero-based, 64 bits in 32."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, LeafSpec, SpecTree
from envpool_bridge.spec.tree import Tree, map_leaves


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


def concatenated(trees: Sequence[Tree], axis: int = 0) -> Tree:
    """Returns trees of arrays joined along an axis."""
    return map_leaves(lambda *arrays: np.concatenate(arrays, axis), *trees)
