"""What a buffer on the host can draw, does draw and remembers is what the compiled functions say, to the bit, whatever happens."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

from agents.api import Replay, ReplayConfig
from jaxsrl.replay.device.sampler import draw, init_selection, insert_slot, num_windows, update_priorities
from jaxsrl.replay.host.sampler import HostSampler
from jaxsrl.replay.sizes import make_sizes
from tests.unit.jaxsrl.replay.test_sizes import shapes_of

CASES = {
    "uniform": (0.0, {"sequence_length": 3}),
    "priorities": (0.6, {"sequence_length": 3}),
    "periods of teams": (0.6, {"sequence_length": 4, "stride": 4, "agents_per_window": 2}),
    "episodes": (0.6, {"sequence_length": 5, "window_start": "episode", "agents_per_window": 2}),
    "uniform episodes": (0.0, {"sequence_length": 2, "window_start": "episode"}),
}
SLOW = [pytest.param(case, marks=pytest.mark.slow) for case in ("priorities", "periods of teams", "uniform episodes")]


def sizes_of(case, capacity=96, **config):
    exponent, replay = CASES[case]
    settings = {"batch_size": 12, "min_size": 24, "priority_exponent": exponent, **config}
    return make_sizes(Replay(ReplayConfig(capacity=capacity, **settings), **replay), shapes_of(2, 4, frames=3))


def priorities(rng, count):
    """[count] float32, some of them no numbers or negative."""
    found = (rng.random(count) ** 3 * 20).astype(np.float32)
    return np.where(rng.random(count) < 0.1, rng.choice([np.nan, np.inf, -1.0], count), found).astype(np.float32)


@pytest.mark.parametrize("case", ["uniform", "episodes", *SLOW])
def test_everything_is_as_on_the_device(case):
    sizes, rng = sizes_of(case), np.random.default_rng(0)
    host, device = HostSampler(sizes), init_selection(sizes)
    add, take, update = (jax.jit(partial(each, sizes)) for each in (insert_slot, draw, update_priorities))
    count = jax.jit(partial(num_windows, sizes))
    waiting, compared = [], 0
    for number in range(60):  # five turns of the ring
        is_first, valid = rng.random((2, 4)) < 0.3, rng.random((2, 4)) < 0.7
        first = priorities(rng, 8).reshape(2, 4) if number % 3 else np.full((2, 4), 0.5, np.float32)
        device = add(device, is_first, valid, first)
        host.insert(is_first, valid, first)
        assert host.num_windows == int(count(device))
        if not host.num_windows:
            continue
        words = np.array([number, 5], np.uint32)
        drawn = host.make_windows(*host.draw(words))
        jax.tree.map(np.testing.assert_array_equal, drawn, take(device, words))
        compared += 1
        waiting.append(drawn)
        # Priorities of windows drawn up to 20 trajectories ago: some are stale, and all of the oldest.
        late = waiting[max(0, len(waiting) - 1 - int(rng.integers(0, 20)))]
        found = priorities(rng, 12)
        device = update(device, jax.tree.map(lambda leaf: np.asarray(leaf, _narrow(leaf)), late), found)
        host.update_priorities(late, found)
        jax.tree.map(np.testing.assert_array_equal, host.arrays(), device)
        assert jax.tree.map(_form, host.arrays()) == jax.tree.map(_form, device)
        if number % 20 == 19:
            saved = jax.tree.map(np.array, jax.device_get(device))
            host = HostSampler(sizes)
            host.restore(saved)
    assert compared > 40
    assert (host.num_stale > 20) == (sizes.priority_exponent > 0)


def test_new_windows_have_the_highest_priority_by_default():
    sizes = sizes_of("priorities")
    host, device = HostSampler(sizes), init_selection(sizes)
    add, update = jax.jit(partial(insert_slot, sizes)), jax.jit(partial(update_priorities, sizes))
    flags = np.zeros((2, 4), bool)
    for number in range(20):
        host.insert(flags, ~flags)
        device = add(device, flags, ~flags)
        if number > 4:
            drawn, found = (
                host.make_windows(*host.draw(np.array([number, 0], np.uint32))),
                np.full(12, 1.5**number, np.float32),
            )
            host.update_priorities(drawn, found)
            device = update(device, jax.tree.map(lambda leaf: np.asarray(leaf, _narrow(leaf)), drawn), found)
    jax.tree.map(np.testing.assert_array_equal, host.arrays(), device)


@pytest.mark.parametrize(("before", "after"), [(2**31 - 2, -(2**31) + 1), (5 - 2**31, 8 - 2**31), (-2, 1)])
def test_the_number_of_insertions_may_wrap_around(before, after):
    sizes = sizes_of("priorities")
    host, flags = HostSampler(sizes), np.zeros((2, 4), bool)
    for _ in range(12):
        host.insert(flags, ~flags)
    selection = host.arrays()
    position = dataclasses.replace(selection.position, num_insertions=np.asarray(before, np.int32))
    host.restore(jax.tree.map(np.array, dataclasses.replace(selection, position=position)))
    drawn = host.make_windows(*host.draw(np.array([1, 1], np.uint32)))
    for _ in range(3):
        host.insert(flags, ~flags)
    assert int(host.arrays().position.num_insertions) == after
    host.update_priorities(drawn, np.full(12, 3.0))
    stale = int((drawn.age + 6 > sizes.max_age).sum())
    assert 0 < host.num_stale == stale < 12


def _narrow(leaf):
    return np.int32 if np.asarray(leaf).dtype.kind == "i" else np.float32


def _form(leaf):
    return leaf.shape, leaf.dtype
