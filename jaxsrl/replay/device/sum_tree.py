"""A sum-tree on the device: weights, drawn in proportion to them.

Each node has 16 children and is the sum of them, added from the first to the last: float32 additions whose order is fixed, so
that the same weights give the same sums on every backend and in numpy. A node that changes is added up again from its children,
never corrected by a difference, so that no rounding error stays.

All levels lie in one array, the 16 children of the root first and the leaves last. Levels are passed in a loop that compiles once,
and whose steps are not computed again for each number that is read after them, as compilers would without it.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Array

FAN_OUT = 16


def level_offsets(num_leaves: int) -> list[int]:
    """Where each level begins, from the root's children to the leaves, and where the array ends. Levels are of whole nodes."""
    sizes = [-(-num_leaves // FAN_OUT) * FAN_OUT]
    while sizes[0] > FAN_OUT:
        sizes.insert(0, -(-(sizes[0] // FAN_OUT) // FAN_OUT) * FAN_OUT)
    return [0, *np.cumsum(sizes).tolist()]


def num_levels(num_leaves: int) -> int:
    """Numbers that drawing a leaf takes."""
    return len(level_offsets(num_leaves)) - 1


def init_tree(num_leaves: int) -> Array:
    """Returns a tree of zeros: [nodes] float32."""
    return jnp.zeros(level_offsets(num_leaves)[-1], jnp.float32)


def weights_at(num_leaves: int, tree: Array, leaf: Array) -> Array:
    """[n] float32, of leaves [n]."""
    return tree.at[level_offsets(num_leaves)[-2] + leaf].get(mode="promise_in_bounds")


def write_leaves(num_leaves: int, tree: Array, leaf: Array, weight: Array, keep: Array) -> Array:
    """Returns the tree with other weights, and sums as they were: `add_up` must follow.

    Args:
        num_leaves: of the tree.
        tree: to change.
        leaf: [n] int32; of equal ones at most one may be kept.
        weight: [n] float32, finite and not negative.
        keep: [n] bool, whether to write this one at all.
    """
    place = jnp.where(keep, level_offsets(num_leaves)[-2] + leaf, tree.shape[0])
    return tree.at[place].set(weight, mode="drop")


def add_up(num_leaves: int, tree: Array, node: Array) -> Array:
    """Returns the tree with correct sums above these lowest nodes: [n] int32, of which node i has the leaves from 16 i on."""
    offsets = jnp.asarray(level_offsets(num_leaves), jnp.int32)
    above = num_levels(num_leaves) - 1

    def add_level(step: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        tree, node = carry
        level = above - step
        sums = _running_sums(_children(tree, offsets[level] + node * FAN_OUT))[-1]
        return tree.at[offsets[level - 1] + node].set(sums, mode="promise_in_bounds"), node // FAN_OUT

    return jax.lax.fori_loop(0, above, add_level, (tree, node))[0]


def nodes_of_run(num_leaves: int, first: Array, count: int) -> Array:
    """Lowest nodes, [n] int32, of `count` leaves from `first` on, in a ring of `num_leaves`."""
    nodes = -(-num_leaves // FAN_OUT)
    # One more where the run begins within a node, and one where the ring ends within one.
    touched = min(-(-count // FAN_OUT) + 2, nodes)
    return (first // FAN_OUT + jnp.arange(touched, dtype=jnp.int32)) % nodes


def draw_leaves(num_leaves: int, tree: Array, uniform: Array) -> tuple[Array, Array]:
    """Leaves drawn in proportion to their weights, independently.

    Every level has a number of its own, so that how finely weights are told apart does not depend on how many there are. A leaf
    of weight 0 is never drawn.

    Args:
        num_leaves: of the tree.
        tree: with a total above 0.
        uniform: [levels, n] float32 in [0, 1).

    Returns:
        [n] int32 leaves, and [n] float32 probabilities: weights by the total.
    """
    offsets = jnp.asarray(level_offsets(num_leaves), jnp.int32)
    zeros = jnp.zeros(uniform.shape[1:], jnp.float32)
    # The loop has all that is read of the tree: whatever is written to it later needs no copy.
    descend = partial(_descend, tree, offsets, uniform)
    first = (jnp.zeros(zeros.shape, jnp.int32), zeros, zeros)
    leaf, weight, everything = jax.lax.fori_loop(0, uniform.shape[0], descend, first)
    return leaf, weight / everything


def _descend(
    tree: Array, offsets: Array, uniform: Array, level: Array, carry: tuple[Array, Array, Array]
) -> tuple[Array, Array, Array]:
    """From nodes [n] of a level to one child of each: the children, what they weigh, and the sum of the root."""
    node, _, everything = carry
    first = offsets[level] + node * FAN_OUT
    sums = _running_sums(_children(tree, first))
    # Below the whole sum even when rounded, for the numbers are at most 1 - 2^-24: a last child of weight 0 is never drawn.
    target = uniform[level] * sums[-1]
    # One after the other: as one array of sums, the compiler adds each of them up from the beginning.
    child = jnp.zeros(node.shape, jnp.int32)
    for reached in sums:
        child += reached <= target
    weight = tree.at[first + child].get(mode="promise_in_bounds")
    return node * FAN_OUT + child, weight, jnp.where(level == 0, sums[-1], everything)


def _children(tree: Array, first: Array) -> list[Array]:
    """16 neighbours from `first` [...] on, [...] each."""
    return [tree.at[first + place].get(mode="promise_in_bounds") for place in range(FAN_OUT)]


def _running_sums(children: list[Array]) -> list[Array]:
    """Sums of the first 1, 2, ... of the children, one after the other as `numpy.cumsum` adds."""
    sums = children[:1]
    for child in children[1:]:
        sums.append(sums[-1] + child)
    return sums
