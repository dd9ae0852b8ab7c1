"""Random actions in stored form, as the pool's benchmarks post them."""

from functools import partial

import numpy as np

from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, LeafSpec
from envpool_bridge.spec.tree import Tree, map_leaves, take


def random_actions(spec: EnvSpec, num_rows: int) -> list[Tree]:
    """Returns 97 actions, [num_rows, ...] each leaf: uniform, or standard normal if a leaf has no bounds."""
    drawn = map_leaves(partial(_random_leaf, np.random.default_rng(0), (97, num_rows)), spec.action)
    return [take(drawn, turn) for turn in range(97)]


def _random_leaf(rng: np.random.Generator, shape: tuple[int, ...], leaf: LeafSpec) -> np.ndarray:
    full = (*shape, *leaf.shape)
    if isinstance(leaf, DiscreteSpec):
        return rng.integers(0, leaf.num_values, full).astype(np.int32)
    if not isinstance(leaf, ArraySpec):
        return rng.integers(0, np.reshape(leaf.num_values, leaf.shape), full).astype(np.int32)
    low, high = leaf.bound("low"), leaf.bound("high")
    if low is None or high is None or not (np.isfinite(low).all() and np.isfinite(high).all()):
        return rng.standard_normal(full).astype(np.float32)
    return rng.uniform(low, high, full).astype(np.float32)
