"""Prioritized windows: exact probabilities, new ones, and priorities that come late."""

import dataclasses
import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Replay, ReplayConfig
from jaxsrl.replay.device.sampler import SampledWindows, draw, init_selection, insert_slot, update_priorities
from jaxsrl.replay.device.sum_tree import level_offsets
from jaxsrl.replay.priority_delay import delay_priorities, init_pending
from jaxsrl.replay.sizes import make_sizes
from tests.unit.jaxsrl.replay.test_sizes import shapes_of

ROWS, STEPS = 4, 2
CONFIG = ReplayConfig(capacity=80, batch_size=4, min_size=12, priority_exponent=0.5, priority_offset=0.25)


def sizes_with(config=CONFIG, **replay):
    return make_sizes(Replay(config, **{"sequence_length": 3, **replay}), shapes_of(STEPS, ROWS))


@functools.cache
def jitted(function, sizes):
    """Compiled once for all tests of these sizes."""
    return jax.jit(partial(function, sizes))


def filled(sizes, count, selection=None, priority=None):
    selection = init_selection(sizes) if selection is None else selection
    flags = jnp.zeros((STEPS, ROWS), bool)
    add = jitted(insert_slot, sizes)
    for number in range(count):
        selection = add(selection, flags, ~flags, None if priority is None else priority(number))
    return selection


def windows_at(selection, begin, group, age):
    """Windows as they would have been drawn just now."""
    found = [jnp.asarray(values, jnp.int32) for values in (begin, group, age)]
    return SampledWindows(*found, selection.position.num_insertions, jnp.ones(len(begin)), jnp.asarray(1, jnp.int32))


def weight(sizes, selection, begin, group):
    leaf = np.asarray(begin) * sizes.num_groups + np.asarray(group)
    return np.asarray(selection.tree)[level_offsets(sizes.num_leaves)[-2] + leaf]


@pytest.mark.slow
def test_a_million_draws_follow_the_exact_probabilities():
    config = dataclasses.replace(CONFIG, batch_size=20_000)
    sizes = sizes_with(config)
    rng = np.random.default_rng(0)
    priorities = rng.random((40, STEPS, ROWS)).astype(np.float32) ** 4 * 10
    selection = filled(sizes, 13, priority=lambda number: priorities[number])
    # 26 steps of which 20 are kept; windows of 3 begin at steps 6 to 23, with the priorities of the trajectory completing them.
    expected = np.zeros((sizes.ring_steps, ROWS))
    for begin in range(6, 24):
        number = -(-(begin + 3) // STEPS) - 1
        place = begin - ((number + 1) * STEPS - 3 - STEPS + 1)
        expected[begin % 20] = (priorities[number][place].astype(float) + 0.25) ** 0.5
    expected = expected.reshape(-1) / expected.sum()

    def count(key):
        drawn = draw(sizes, selection, key)
        return drawn.begin * ROWS + drawn.group, drawn.probability, drawn.num_windows

    leaves, probability, windows = jax.lax.map(count, jnp.arange(100, dtype=jnp.uint32).reshape(50, 2))
    np.testing.assert_allclose(probability, expected[np.asarray(leaves)], rtol=2e-6)
    np.testing.assert_array_equal(windows, 18 * ROWS)
    counts = np.bincount(np.asarray(leaves).reshape(-1), minlength=80)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    chi_square = ((counts - 1e6 * expected)[possible] ** 2 / (1e6 * expected[possible])).sum()
    assert chi_square < 112.3  # 71 degrees of freedom: one in a thousand


def test_new_windows_get_the_highest_priority_so_far():
    sizes = sizes_with()
    selection = filled(sizes, 2)
    np.testing.assert_allclose(weight(sizes, selection, [0, 1, 2], [0, 3, 0]), [1.25**0.5, 1.25**0.5, 0.0])
    drawn = windows_at(selection, [0, 1, 1, 0], [0, 1, 1, 2], [4, 3, 3, 4])
    selection = jitted(update_priorities, sizes)(selection, drawn, jnp.array([0.5, 9.0, 3.0, 0.0]))
    # Of a window that was drawn twice the later place counts; the highest of all is remembered.
    np.testing.assert_allclose(weight(sizes, selection, [0, 1, 0], [0, 1, 2]), [0.75**0.5, 3.25**0.5, 0.25**0.5])
    selection = filled(sizes, 1, selection)
    np.testing.assert_allclose(weight(sizes, selection, [2, 3, 0], [0, 0, 1]), [9.25**0.5, 9.25**0.5, 1.25**0.5])
    assert int(selection.num_stale) == 0


def test_update_priorities_skips_and_counts_overwritten_windows():
    sizes = sizes_with()
    selection = filled(sizes, 10)  # 20 steps: the ring is full
    drawn = windows_at(selection, [0, 1, 2, 17], [0, 1, 2, 3], [20, 19, 18, 3])
    later = filled(sizes, 1, selection)
    after = jitted(update_priorities, sizes)(later, drawn, jnp.array([100.0, 50.0, 2.0, 3.0]))
    assert int(after.num_stale) == 2
    assert float(after.highest) == 3.0
    np.testing.assert_allclose(weight(sizes, after, [0, 1, 2, 17], [0, 1, 2, 3]), np.sqrt([0, 0, 2.25, 3.25]))
    long_after = filled(sizes, 10, selection)
    unchanged = jitted(update_priorities, sizes)(long_after, drawn, jnp.full(4, 7.0))
    assert int(unchanged.num_stale) == 4
    np.testing.assert_array_equal(unchanged.tree, long_after.tree)


def test_a_priority_that_is_no_number_is_the_highest_so_far():
    sizes = sizes_with()
    selection = filled(sizes, 2)
    drawn = windows_at(selection, [0, 0, 1, 1], [0, 1, 2, 3], [4, 4, 3, 3])
    selection = jitted(update_priorities, sizes)(selection, drawn, jnp.array([jnp.nan, jnp.inf, -1.0, 4.0]))
    expected = np.sqrt([1.25, 1.25, 0.25, 4.25])
    np.testing.assert_allclose(weight(sizes, selection, [0, 0, 1, 1], [0, 1, 2, 3]), expected)


@pytest.mark.parametrize("delay", [0, 2])
def test_priorities_are_known_to_draws_after_their_delay(delay):
    sizes = sizes_with(dataclasses.replace(CONFIG, priority_delay=delay, batch_size=1))
    selection, pending = filled(sizes, 8), init_pending(sizes)
    send = jax.jit(partial(delay_priorities, sizes))
    for step in range(9):
        # Step k finds k + 10 for window k; before it, all of steps up to k - 1 - d have arrived and no others.
        known = [step_before + 10.25 if step_before < step - delay else 1.25 for step_before in range(step)]
        np.testing.assert_allclose(weight(sizes, selection, np.arange(step), 0) ** 2, known, rtol=1e-6)
        drawn = windows_at(selection, [step], [0], [16 - step])
        selection, pending = send(selection, pending, drawn, jnp.array([step + 10.0]))
    assert int(selection.num_stale) == 0


def test_team_windows_have_the_highest_priority_of_their_rows():
    sizes = sizes_with(agents_per_window=2)
    priority = np.array([[1, 5, 2, 3], [0, 0, 7, 6]], np.float32)
    selection = filled(sizes, 2, priority=lambda number: priority if number else 9 * priority)
    np.testing.assert_allclose(
        weight(sizes, selection, [0, 0, 1, 1], [0, 1, 0, 1]) ** 2, [5.25, 3.25, 0.25, 7.25], rtol=1e-6
    )


def test_uniform_draw_is_an_integer_equation_of_the_key():
    sizes = sizes_with(dataclasses.replace(CONFIG, priority_exponent=0.0, batch_size=100), stride=2)
    selection = filled(sizes, 17)
    words = np.array([7, 2**32 - 5], np.uint32)
    drawn = jax.jit(partial(draw, sizes))(selection, words)
    count = 9 * ROWS  # of 34 steps 20 are kept: windows begin at steps 14, 16, .. 30
    raw = np.random.Philox(key=7 + (2**32 - 5) * 2**32).random_raw(100)
    number = np.array([int(bits) * count // 2**64 for bits in raw])
    begin = 14 + number // ROWS * 2
    np.testing.assert_array_equal(drawn.begin, begin % 20)
    np.testing.assert_array_equal(drawn.age, 34 - begin)
    np.testing.assert_array_equal(drawn.group, number % ROWS)
    np.testing.assert_allclose(drawn.probability, 1 / count)
