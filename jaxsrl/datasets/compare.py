"""Comparison of the specs of datasets and environments: whether the recorded values mean the same."""

import numpy as np

from envpool_bridge.spec.specs import ArraySpec, LeafSpec, SpecTree
from envpool_bridge.spec.tree import leaves, map_leaves


def same_values(one: SpecTree, other: SpecTree) -> bool:
    """Returns whether two specs have the same leaves: stored shapes and dtypes, numbers of discrete values and the smallest.

    The bounds of arrays may differ. The dtype before storing may differ too: a converted file has that of the file.
    """

    def form(leaf: LeafSpec) -> tuple[object, ...]:
        discrete = () if isinstance(leaf, ArraySpec) else (leaf.num_values, leaf.start)
        return (leaf.stored_shape, leaf.dtype, *discrete)

    return map_leaves(form, one) == map_leaves(form, other)


def same_bounds(one: ArraySpec, other: ArraySpec) -> bool:
    """Returns whether every element of two leaves of the same shape lies between the same bounds."""
    return all(map(np.array_equal, _bounds(one), _bounds(other)))


def same_actions(one: SpecTree, other: SpecTree) -> bool:
    """Returns whether two specs of actions have the same values between the same bounds, to which agents scale them."""
    pairs = zip(leaves(one), leaves(other), strict=True) if same_values(one, other) else None
    return pairs is not None and all(same_bounds(*pair) for pair in pairs if isinstance(pair[0], ArraySpec))


def _bounds(leaf: ArraySpec) -> list[np.ndarray]:
    """Returns the lowest and highest value of each element; an infinite one where there is no bound."""
    bounds = ((leaf.bound("low"), -np.inf), (leaf.bound("high"), np.inf))
    return [np.broadcast_to(free if bound is None else bound, leaf.stored_shape) for bound, free in bounds]
