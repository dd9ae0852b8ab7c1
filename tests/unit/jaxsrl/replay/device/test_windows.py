"""Windows are what a list of all steps says, over several turns of the ring."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

from agents.api import Replay, ReplayConfig
from jaxsrl.replay.device.ring_index import step_at_age
from jaxsrl.replay.device.sampler import draw, init_selection, insert_slot, num_windows
from jaxsrl.replay.device.storage import init_storage, insert
from jaxsrl.replay.device.windows import gather_windows
from jaxsrl.replay.sizes import make_sizes
from tests.support.replay_model import Stream

DRAWS = 64
# Steps, capacity, priority exponent, windows.
CASES = {
    "one step": (Stream(rows=3, steps=4, seed=0), 40, 0.0, {"sequence_length": 1}),
    "trajectories of one step": (
        Stream(rows=2, steps=1, frames=4, seed=3, before=4, end=0.1),
        30,
        0.5,
        {"sequence_length": 3},
    ),
    "stacked frames": (Stream(rows=2, steps=3, frames=4, seed=2), 40, 0.0, {"sequence_length": 4}),
    "a stride in the tree": (Stream(rows=2, steps=4, frames=2, seed=5), 48, 0.5, {"sequence_length": 5, "stride": 3}),
    "sequences that overlap": (
        Stream(rows=2, steps=2, seed=4, remembers=True, before=3),
        48,
        0.5,
        {"sequence_length": 7, "stride": 4},
    ),
    "a stride that trajectories do not fit": (
        Stream(rows=2, steps=4, frames=2, seed=5),
        48,
        0.0,
        {"sequence_length": 5, "stride": 3},
    ),
    "teams": (Stream(rows=6, steps=3, seed=6), 60, 0.5, {"sequence_length": 2, "agents_per_window": 3}),
    "episodes": (
        Stream(rows=3, steps=3, frames=2, seed=7, remembers=True),
        60,
        0.0,
        {"sequence_length": 4, "window_start": "episode"},
    ),
    "episodes of teams": (
        Stream(rows=4, steps=3, end=0.5),
        60,
        0.5,
        {"sequence_length": 3, "window_start": "episode", "agents_per_window": 2},
    ),
}


def insert_both(sizes, storage, selection, slot):
    stored = insert(sizes, storage, selection.position, slot)
    is_first = slot.is_first[sizes.history : sizes.history + sizes.rollout_length]
    selection = insert_slot(sizes, selection, is_first, slot.valid)
    return stored, selection, num_windows(sizes, selection)


def draw_both(sizes, storage, selection, key):
    drawn = draw(sizes, selection, key)
    position = selection.position
    windows = gather_windows(sizes, storage, position, drawn.begin, drawn.group)
    return drawn, windows, step_at_age(sizes, position, drawn.age)


def column(windows, index):
    steps = jax.tree.map(lambda leaf: leaf[:, index], dataclasses.replace(windows, agent_state=()))
    state = jax.tree.map(lambda leaf: leaf[index], windows.agent_state)
    return dataclasses.replace(steps, agent_state=state)


def test_an_insertion_copies_no_ring():
    slot = Stream(rows=4, steps=4, frames=2).slot()
    sizes = make_sizes(Replay(ReplayConfig(10_000, 8, min_size=8), sequence_length=1), slot)
    add = jax.jit(partial(insert, sizes), donate_argnums=0)
    memory = add.lower(init_storage(sizes, slot), init_selection(sizes).position, slot).compile().memory_analysis()
    assert memory.temp_size_in_bytes < sizes.ring_steps


# One of each kind is fast: in a tree and not, frames and none, sequences, teams, episodes.
SLOW = {"one step", "stacked frames", "a stride in the tree", "teams", "episodes"}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow) if case in SLOW else case for case in CASES]
)
def test_windows_are_those_of_a_list_of_all_steps(case):
    template, capacity, exponent, replay = CASES[case]
    stream = dataclasses.replace(template)
    config = ReplayConfig(capacity, DRAWS, min_size=capacity // 2, priority_exponent=exponent)
    example = dataclasses.replace(template).slot()
    sizes = make_sizes(Replay(config, **replay), example)
    storage, selection = init_storage(sizes, example), init_selection(sizes)
    add, sample = jax.jit(partial(insert_both, sizes)), jax.jit(partial(draw_both, sizes))
    for number in range(int(2.5 * sizes.ring_steps) // stream.steps):
        storage, selection, count = add(storage, selection, stream.slot())
        expected = stream.begins(sizes)
        assert int(count) == len(expected)
        if not expected:
            continue
        drawn, windows, steps = jax.device_get(sample(storage, selection, np.array([number, 0], np.uint32)))
        begins = stream.time - drawn.age
        found = set(zip(begins.tolist(), drawn.group.tolist(), strict=True))
        assert found <= expected
        assert len(found) > min(len(expected), DRAWS) // 2
        np.testing.assert_array_equal(steps, drawn.begin)
        np.testing.assert_allclose(drawn.probability, 1.0 / len(expected), rtol=1e-6)
        for index in (number % DRAWS, -1):
            for place in range(sizes.agents_per_window):
                rows = sizes.agents_per_window
                window = column(windows, (index % DRAWS) * rows + place)
                stream.check(window, int(drawn.group[index]) * rows + place, int(begins[index]), sizes.window_steps)
