"""The sum-tree is numpy's: sums, leaves drawn from given numbers, and what changes."""

from functools import partial

import jax
import numpy as np
import pytest

from jaxsrl.replay.device.sum_tree import (
    draw_leaves,
    init_tree,
    level_offsets,
    nodes_of_run,
    num_levels,
    update_sums,
    write_leaves,
)

WIDTH = 16
SIZES = [1, 33, pytest.param(40_000, marks=pytest.mark.slow)]  # one level, two, four


def sums_of(weights):
    """Levels from the leaves up, each row added from first to last; float32 throughout."""
    levels = []
    while not levels or len(weights) > 1:
        rows = -(-len(weights) // WIDTH)
        level = np.zeros(rows * WIDTH, np.float32)
        level[: len(weights)] = weights
        levels.append(level.reshape(rows, WIDTH))
        weights = np.cumsum(levels[-1], axis=1, dtype=np.float32)[:, -1]
    return levels


def drawn_from(levels, uniform):
    """By a loop: from the root down, in each row the first child whose running sum exceeds the number's part of it."""
    leaves = []
    for numbers in uniform.T:
        node = 0
        for level, number in zip(levels[::-1], numbers, strict=True):
            sums = np.cumsum(level[node], dtype=np.float32)
            assert number * sums[-1] < sums[-1]
            node = node * WIDTH + int(np.argmax(sums > number * sums[-1]))
        leaves.append(node)
    return np.array(leaves)


def change(tree, leaf, weight, keep, num_leaves):
    return update_sums(num_leaves, write_leaves(num_leaves, tree, leaf, weight, keep), leaf // WIDTH)


def change_run(tree, first, weight, keep, num_leaves):
    leaf = (first + np.arange(len(weight), dtype=np.int32)) % num_leaves
    tree = write_leaves(num_leaves, tree, leaf, weight, keep)
    return update_sums(num_leaves, tree, nodes_of_run(num_leaves, first, len(weight)))


def tree_of(weights):
    count = len(weights)
    return jax.jit(partial(change_run, num_leaves=count))(init_tree(count), 0, weights, np.ones(count, bool))


def flat(levels):
    return np.concatenate([level.reshape(-1) for level in levels[::-1]])


def random_weights(rng, count):
    return (rng.random(count, np.float32) ** 8 * (rng.random(count) < 0.7)).astype(np.float32)


@pytest.mark.parametrize("count", SIZES)
def test_sums_and_drawn_leaves_are_numpys_to_the_bit(count):
    rng = np.random.default_rng(count)
    weights = random_weights(rng, count)
    weights[rng.integers(count)] = 0.5
    tree, levels = tree_of(weights), sums_of(weights)
    np.testing.assert_array_equal(tree, flat(levels))
    uniform = np.array(jax.random.uniform(jax.random.key(count), (num_levels(count), 300)))
    uniform[:, 0], uniform[:, 1] = 0.0, np.nextafter(np.float32(1), np.float32(0))
    leaves, found = jax.jit(partial(draw_leaves, count))(tree, uniform)
    np.testing.assert_array_equal(leaves, drawn_from(levels, uniform))
    np.testing.assert_array_equal(found, weights[leaves] / np.cumsum(levels[-1][0], dtype=np.float32)[-1])
    assert found.min() > 0.0


def test_any_leaves_and_ranges_change_as_numpys_do():
    rng, count = np.random.default_rng(1), 1500
    weights = np.zeros(count, np.float32)
    tree = init_tree(count)
    some, run = (jax.jit(partial(function, num_leaves=count)) for function in (change, change_run))
    for _ in range(20):
        size = min(count, 40)
        places, keep = rng.choice(count, size, replace=False), rng.random(size) < 0.8
        new = random_weights(rng, size)
        tree = some(tree, places.astype(np.int32), new, keep)
        weights[places[keep]] = new[keep]
        first, new, keep = int(rng.integers(count)), random_weights(rng, size), rng.random(size) < 0.8
        tree = run(tree, first, new, keep)  # over the end of the ring, often
        for place in np.flatnonzero(keep):
            weights[(first + place) % count] = new[place]
    np.testing.assert_array_equal(tree, flat(sums_of(weights)))
    places = rng.integers(count, size=50)
    np.testing.assert_array_equal(tree[level_offsets(count)[-2] + places], weights[places])


def test_no_rounding_error_stays():
    tree = init_tree(64)
    one = jax.jit(partial(change, num_leaves=64))
    for weight in (1e8, 3.0, 1e-3):
        tree = one(tree, np.zeros(1, np.int32), np.array([weight], np.float32), np.ones(1, bool))
    np.testing.assert_array_equal(tree[:2], np.float32([1e-3, 0.0]))


def test_small_weights_among_many_are_told_apart():
    # A million leaves: one number for the whole way down would have a resolution of a tenth of a leaf.
    count = 2**20
    tree = np.concatenate([np.full(WIDTH**level, WIDTH ** (5 - level), np.float32) for level in range(1, 6)])
    uniform = np.random.default_rng(0).random((5, 200_000), np.float32)
    leaves, _ = jax.jit(partial(draw_leaves, count))(tree, uniform)
    counts = np.bincount(np.asarray(leaves) % WIDTH, minlength=WIDTH)
    expected = 200_000 / WIDTH
    assert ((counts - expected) ** 2 / expected).sum() < 37.7  # chi-square, 15 degrees of freedom: one in a thousand
