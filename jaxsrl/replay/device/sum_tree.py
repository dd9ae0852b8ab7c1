"""Sum-tree on the device: draws leaves in proportion to their weights.

Each node is the sum of its 16 children, added from first to last. The order of these float32 additions is fixed, so every
backend and numpy compute the same sums. A changed node is summed again from its children instead of being corrected by a
difference, so rounding errors do not accumulate.

All levels are in one array, the 16 children of the root first and the leaves last. A loop over the levels compiles once. It also
keeps compilers from computing a level again for each value that is read after it.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Array

FAN_OUT = 16


def level_offsets(num_leaves: int) -> list[int]:
    """Returns the offset of each level, from the root's children to the leaves, and the array's size.

    Levels consist of whole nodes.
    """
    sizes = [-(-num_leaves // FAN_OUT) * FAN_OUT]
    while sizes[0] > FAN_OUT:
        sizes.insert(0, -(-(sizes[0] // FAN_OUT) // FAN_OUT) * FAN_OUT)
    return [0, *np.cumsum(sizes).tolist()]


def num_levels(num_leaves: int) -> int:
    """Returns the number of random numbers per leaf."""
    return len(level_offsets(num_leaves)) - 1


def init_tree(num_leaves: int) -> Array:
    """Returns a tree of zeros: [nodes] float32."""
    return jnp.zeros(level_offsets(num_leaves)[-1], jnp.float32)


def write_leaves(num_leaves: int, tree: Array, leaf: Array, weight: Array, keep: Array) -> Array:
    """Returns the tree with new weights and unchanged sums: call `update_sums` next.

    Args:
        num_leaves: Number of leaves of the tree.
        tree: Tree to change.
        leaf: [n] int32; of equal ones at most one may be written.
        weight: [n] float32, finite and not negative.
        keep: [n] bool, whether to write this one.
    """
    place = jnp.where(keep, level_offsets(num_leaves)[-2] + leaf, tree.shape[0])
    return tree.at[place].set(weight, mode="drop")


def update_sums(num_leaves: int, tree: Array, node: Array) -> Array:
    """Returns the tree with correct sums above these lowest nodes, [n] int32. Node i has the leaves from 16 i on."""
    offsets = jnp.asarray(level_offsets(num_leaves), jnp.int32)
    above = num_levels(num_leaves) - 1

    def add_level(step: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        tree, node = carry
        level = above - step
        sums = _running_sums(_children(tree, offsets[level] + node * FAN_OUT))[-1]
        return tree.at[offsets[level - 1] + node].set(sums, mode="promise_in_bounds"), node // FAN_OUT

    return jax.lax.fori_loop(0, above, add_level, (tree, node))[0]


def nodes_of_run(num_leaves: int, first: Array, count: int) -> Array:
    """Returns the lowest nodes, [n] int32, of `count` leaves from `first` on, in a ring of `num_leaves`."""
    nodes = -(-num_leaves // FAN_OUT)
    # One more where the run starts within a node, and one where the ring ends within one.
    touched = min(-(-count // FAN_OUT) + 2, nodes)
    return (first // FAN_OUT + jnp.arange(touched, dtype=jnp.int32)) % nodes


def draw_leaves(num_leaves: int, tree: Array, uniform: Array) -> tuple[Array, Array]:
    """Returns leaves drawn independently, in proportion to their weights.

    Each level uses its own random number, so the resolution of weights does not depend on their number. A leaf of weight 0 is
    never drawn.

    Args:
        num_leaves: Number of leaves of the tree.
        tree: Tree with a total above 0.
        uniform: [levels, n] float32 in [0, 1).

    Returns:
        [n] int32 leaves, and [n] float32 probabilities: weights divided by the total.
    """
    offsets = jnp.asarray(level_offsets(num_leaves), jnp.int32)
    zeros = jnp.zeros(uniform.shape[1:], jnp.float32)
    # All reads of the tree are in this loop, so later writes need no copy.
    descend = partial(_descend, tree, offsets, uniform)
    first = (jnp.zeros(zeros.shape, jnp.int32), zeros, zeros)
    leaf, weight, everything = jax.lax.fori_loop(0, uniform.shape[0], descend, first)
    return leaf, weight / everything


def _descend(
    tree: Array, offsets: Array, uniform: Array, level: Array, carry: tuple[Array, Array, Array]
) -> tuple[Array, Array, Array]:
    """Descends from nodes [n] of a level to one child each; returns the children, their weights and the root's sum."""
    node, _, everything = carry
    first = offsets[level] + node * FAN_OUT
    sums = _running_sums(_children(tree, first))
    # Below the whole sum even when rounded, for the numbers are at most 1 - 2^-24: a last child of weight 0 is never drawn.
    target = uniform[level] * sums[-1]
    # Sequential: from one array of sums, the compiler would add each sum from the first child.
    child = jnp.zeros(node.shape, jnp.int32)
    for reached in sums:
        child += reached <= target
    weight = tree.at[first + child].get(mode="promise_in_bounds")
    return node * FAN_OUT + child, weight, jnp.where(level == 0, sums[-1], everything)


def _children(tree: Array, first: Array) -> list[Array]:
    """Returns 16 neighbors from `first` [...] on, [...] each."""
    return [tree.at[first + place].get(mode="promise_in_bounds") for place in range(FAN_OUT)]


def _running_sums(children: list[Array]) -> list[Array]:
    """Returns sums of the first 1, 2, ... children, in the order of `numpy.cumsum`."""
    sums = children[:1]
    for child in children[1:]:
        sums.append(sums[-1] + child)
    return sums
