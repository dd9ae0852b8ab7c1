"""A sum-tree on the device: weights, drawn in proportion to them.

Each node has 32 children and is the sum of them, added from the first to the last: float32 additions whose order is fixed, so
that the same weights give the same sums on every backend and in numpy. A node that changes is added up again from its children,
never corrected by a difference, so that no rounding error stays.
"""

from typing import Any

import jax
import jax.numpy as jnp

from agents.api import Array

FAN_OUT = 32
Tree = tuple[Array, ...]
"""[nodes, 32] float32 a level, the lowest first; a level's rows are the sums that the next has side by side."""


def empty_tree(num_leaves: int) -> Tree:
    """A tree of zeros."""
    levels: list[Array] = []
    nodes = num_leaves
    while not levels or nodes > 1:
        nodes = -(-nodes // FAN_OUT)
        levels.append(jnp.zeros((nodes, FAN_OUT), jnp.float32))
    return tuple(levels)


def total(tree: Tree) -> Array:
    """The sum of all weights, float32 scalar."""
    return _running_sums(_children(tree[-1], jnp.zeros((), jnp.int32)))[-1]


def weights_at(tree: Tree, leaf: Array) -> Array:
    """[n] float32, of leaves [n]."""
    return tree[0].reshape(-1).at[leaf].get(mode="promise_in_bounds")


def set_leaves(tree: Tree, leaf: Array, weight: Array, keep: Array) -> Tree:
    """The tree with other weights.

    Args:
        tree: to change.
        leaf: [n] int32; of equal ones at most one may be kept.
        weight: [n] float32, finite and not negative.
        keep: [n] bool, whether to set this one at all.
    """
    node, place = leaf // FAN_OUT, leaf % FAN_OUT
    lowest = tree[0].at[_dropped(node, keep, tree[0]), place].set(weight, mode="drop")
    return _add_up((lowest, *tree[1:]), lambda level: leaf // FAN_OUT**level)


def set_range(tree: Tree, first: Array, weight: Array, keep: Array, num_leaves: int) -> Tree:
    """As `set_leaves` of the n leaves from `first` on, in a ring of `num_leaves`: nodes above are added up once."""
    count = weight.shape[0]
    leaf = (first + jnp.arange(count, dtype=jnp.int32)) % num_leaves
    node, place = leaf // FAN_OUT, leaf % FAN_OUT
    lowest = tree[0].at[_dropped(node, keep, tree[0]), place].set(weight, mode="drop")

    def nodes(level: int) -> Array:
        size = tree[level - 1].shape[0]
        # One more where the range begins within a node, and one where the ring ends within one.
        touched = min(-(-count // FAN_OUT**level) + 2, size)
        return (first // FAN_OUT**level + jnp.arange(touched, dtype=jnp.int32)) % size

    return _add_up((lowest, *tree[1:]), nodes)


def draw_leaves(tree: Tree, uniform: Array) -> tuple[Array, Array]:
    """Leaves drawn in proportion to their weights, independently.

    Every level has a number of its own, so that how finely weights are told apart does not depend on how many there are. A leaf
    of weight 0 is never drawn.

    Args:
        tree: with a total above 0.
        uniform: [levels, n] float32 in [0, 1).

    Returns:
        [n] int32 leaves, and [n] float32 weights.
    """
    node = jnp.zeros((), jnp.int32)
    for level, number in zip(tree[::-1], uniform, strict=True):
        sums = _running_sums(_children(level, node))
        # Rounded up, the product could be the whole sum: then the last child would be drawn even if it is 0.
        target = jnp.minimum(number * sums[-1], jnp.nextafter(sums[-1], jnp.float32(0.0)))
        # One after the other: as one array of sums, the compiler adds each of them up from the beginning.
        child = jnp.zeros(number.shape, jnp.int32)
        for reached in sums:
            child += reached <= target
        node = node * FAN_OUT + child
    return node, weights_at(tree, node)


def _children(level: Array, node: Array) -> list[Array]:
    """The children of nodes [...], [...] each: on CPU a few times faster than rows whose columns are then cut out."""
    flat = level.reshape(-1)
    return [flat.at[node * FAN_OUT + place].get(mode="promise_in_bounds") for place in range(FAN_OUT)]


def _running_sums(children: list[Array]) -> list[Array]:
    """Sums of the first 1, 2, ... of the children, one after the other as `numpy.cumsum` adds."""
    sums = children[:1]
    for child in children[1:]:
        sums.append(sums[-1] + child)
    return sums


def _add_up(tree: Tree, nodes: Any) -> Tree:
    """The tree with the nodes `nodes(level)` of each level, [n] int32, as sums of their children below."""
    levels = [tree[0]]
    for number, level in enumerate(tree[1:], start=1):
        changed = nodes(number)
        sums = _running_sums(_children(levels[-1], changed))[-1]
        levels.append(level.at[changed // FAN_OUT, changed % FAN_OUT].set(sums))
    return tuple(levels)


def _dropped(node: Array, keep: Array, level: jax.Array) -> Array:
    """Nodes, out of bounds where they are not to be kept."""
    return jnp.where(keep, node, level.shape[0])
