"""The sum-tree in numpy, by the same independent loops as the compiled one."""

import numpy as np
import pytest

from jaxsrl.replay.host.sum_tree import HostTree
from tests.unit.jaxsrl.replay.device.test_sum_tree import drawn_from, flat, random_weights, sums_of

SIZES = [1, 16, 33, 4096, 40_000]


def tree_of(weights):
    tree = HostTree(len(weights))
    tree.write(np.arange(len(weights)), weights)
    tree.update_sums(np.arange(-(-len(weights) // 16)))
    return tree


@pytest.mark.parametrize("count", SIZES)
def test_sums_and_drawn_leaves_are_those_of_loops(count):
    rng = np.random.default_rng(count)
    weights = random_weights(rng, count)
    weights[rng.integers(count)] = 0.5
    tree, levels = tree_of(weights), sums_of(weights)
    np.testing.assert_array_equal(tree.nodes, flat(levels))
    assert tree.num_levels == len(levels)
    uniform = rng.random((len(levels), 300), np.float32)
    uniform[:, 0], uniform[:, 1] = 0.0, 1 - 2**-24
    leaves, found = tree.draw(uniform)
    np.testing.assert_array_equal(leaves, drawn_from(levels, uniform))
    np.testing.assert_array_equal(found, weights[leaves] / np.cumsum(levels[-1][0], dtype=np.float32)[-1])
    assert found.min() > 0.0


@pytest.mark.parametrize("count", [10, 300, 5000])
def test_draw_at_a_boundary_takes_the_next_weighted_leaf(count):
    weights = np.zeros(count, np.float32)
    weights[[count - 7, count - 5, count - 4, count - 2]] = 1.0
    tree, levels = tree_of(weights), sums_of(weights)
    uniform = np.array(np.meshgrid(*[[0.0, 0.25, 0.5, 0.75]] * len(levels)), np.float32).reshape(len(levels), -1)
    leaves, probability = tree.draw(uniform)
    np.testing.assert_array_equal(leaves, drawn_from(levels, uniform))
    assert set(leaves.tolist()) == {count - 7, count - 5, count - 4, count - 2}
    np.testing.assert_array_equal(probability, 0.25)


@pytest.mark.parametrize("count", [33, 1500, 40_000])
def test_any_leaves_change_as_in_loops(count):
    rng, weights, tree = np.random.default_rng(1), np.zeros(count, np.float32), HostTree(count)
    for size in (1, 5, 40, 700):
        for _ in range(5):
            leaf, new = rng.integers(0, count, size), random_weights(rng, size)
            tree.write(leaf, new)
            tree.update_sums(leaf // 16)
            for place, weight in zip(leaf, new, strict=True):
                weights[place] = weight  # of equal ones the last
        np.testing.assert_array_equal(tree.nodes, flat(sums_of(weights)))
    places = rng.integers(count, size=50)
    np.testing.assert_array_equal(tree.weights_at(places), weights[places])


def test_no_rounding_error_stays():
    tree = HostTree(64)
    for weight in (1e8, 3.0, 1e-3):
        tree.write(np.zeros(1, np.int64), np.array([weight], np.float32))
        tree.update_sums(np.zeros(1, np.int64))
    np.testing.assert_array_equal(tree.nodes[:2], np.float32([1e-3, 0.0]))
