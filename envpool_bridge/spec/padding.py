"""Specs that fit several agents: arrays are padded with zeros at the end of each axis, choices get more values.

Rows of a multi-agent environment have one layout. Where agents have different observations or actions, a row has room
for all of them: the same structure, with the largest shapes and numbers of values. `cut` extracts an agent's own part.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from envpool_bridge.errors import UnsupportedSpaceError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, LeafSpec, MultiDiscreteSpec, SpecTree
from envpool_bridge.spec.tree import Tree, items, leaves, map_leaves, paths, shown_path, unflatten


def padded_spec(field: str, names: Sequence[str], specs: Sequence[SpecTree]) -> SpecTree:
    """Returns a spec that fits the values of every agent; the agents' own spec if all are equal.

    Args:
        field: "observation" or "action", for messages.
        names: Names of the agents.
        specs: Specifications of the agents, in the same order.

    Raises:
        UnsupportedSpaceError: their structures, kinds, dtypes or ranks differ.
    """
    first = specs[0]
    if all(spec == first for spec in specs):
        return first
    for name, spec in zip(names, specs, strict=True):
        if paths(spec) != paths(first):
            raise _mismatch_error(names[0], name, field, f"{paths(first)} against {paths(spec)}")
    padded: list[LeafSpec] = []
    for place, (path, _) in enumerate(items(first)):
        column = [leaves(spec)[place] for spec in specs]
        differing = _difference(column)
        if differing is not None:
            raise _mismatch_error(
                names[0], names[differing], shown_path(field, path), f"{column[0]} against {column[differing]}"
            )
        padded.append(_padded_leaf(column))
    return unflatten(first, padded)


def cut(spec: SpecTree, padded: Tree, num_lead: int) -> Tree:
    """Returns an agent's own part of padded arrays, [*lead, ...] a leaf, as views; the first `num_lead` axes stay whole."""
    return map_leaves(lambda leaf, array: array[(..., *_own(leaf, array, num_lead))], spec, padded)


def _own(leaf: LeafSpec, array: Any, num_lead: int) -> tuple[slice, ...]:
    own = array.shape[num_lead:]
    return tuple(slice(0, size) for size in (leaf.shape if len(leaf.shape) == len(own) else leaf.stored_shape))


def _difference(column: Sequence[LeafSpec]) -> int | None:
    """Returns the index of the first leaf that cannot share arrays with the first one, or None."""
    first = column[0]
    for place, leaf in enumerate(column):
        same = type(leaf) is type(first) and leaf.dtype == first.dtype and len(leaf.shape) == len(first.shape)
        if not same or (isinstance(leaf, MultiDiscreteSpec) and leaf != first):
            return place
    return None


def _padded_leaf(column: Sequence[LeafSpec]) -> LeafSpec:
    first = column[0]
    if all(leaf == first for leaf in column):
        return first
    if isinstance(first, DiscreteSpec):
        return DiscreteSpec(max(leaf.num_values for leaf in column if isinstance(leaf, DiscreteSpec)))
    shape = tuple(int(size) for size in np.max([leaf.shape for leaf in column], axis=0))
    assert isinstance(first, ArraySpec)
    limits = [leaf.limits() for leaf in column if isinstance(leaf, ArraySpec)]
    low, high = min(low.min() for low, _ in limits), max(high.max() for _, high in limits)
    if not np.isfinite((low, high)).all():
        return dataclasses.replace(first, shape=shape, low=None, high=None)
    return dataclasses.replace(
        first, shape=shape, low=min(float(low), 0.0), high=max(float(high), 0.0)
    )  # padded by zeros


def _mismatch_error(one: str, other: str, field: str, difference: str) -> UnsupportedSpaceError:
    return UnsupportedSpaceError(
        f"agents {one!r} and {other!r} cannot share rows: {field} differs in kind: {difference}; expected the same structure, "
        f"dtypes and ranks (sizes may differ): wrap the environment so that they agree"
    )
