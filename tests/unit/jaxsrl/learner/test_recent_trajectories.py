"""Order and copies of recent trajectories, from a source whose slots are overwritten after their release."""

import random

import numpy as np
import pytest

from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.learner.recent_trajectories import RecentTrajectories

T, ROWS = 3, 2
STATE = {"core": ArraySpec((4,), "float32")}


class Source:
    """One slot, filled with the numbers that a test gives."""

    def __init__(self, frames=1):
        shape = (frames, 5) if frames > 1 else (5,)
        spec = EnvSpec("test", ArraySpec(shape, "float32", frames=frames), DiscreteSpec(2))
        layout = make_layout(spec, PoolShape(1, 1, 1, ROWS, T, 1), {"value": ArraySpec((), "float32")}, STATE)
        self.slot = allocate_slots(layout)[0]
        self.waiting, self.dropped, self.observed = [], [], []

    def fill(self, number, version=0):
        self.waiting.append((number, version))

    def acquire(self, timeout_seconds):
        if not self.waiting:
            return None
        number, version = self.waiting[0]
        slot = self.slot
        for array in (slot.frames, slot.reward, slot.extras["value"], slot.agent_state["core"]):
            array[...] = number
        slot.policy_version[...] = version
        return number

    def slots(self, sequence):
        return [self.slot]

    def drop(self, sequence):
        self.waiting.pop(0)
        self.slot.reward[...] = -1.0  # the environments write into it
        self.dropped.append(sequence)

    def observe(self, slots):
        (slot,) = slots
        self.observed.append(float(slot.reward[0, 0]))


def taken(recent, source, num_updates=0):
    found = recent.take(num_updates, 0.0, source.observe)
    return None if found is None else float(found[0].reward[0, 0])


def test_take_returns_the_least_used_and_newest_first():
    source = Source()
    recent = RecentTrajectories(source, 3, 2, 9)
    assert taken(recent, source) is None
    for number in (1, 2):
        source.fill(number)
    assert taken(recent, source) == 2.0
    source.fill(3)
    assert [taken(recent, source) for _ in range(5)] == [3.0, 1.0, 3.0, 2.0, 1.0]
    assert taken(recent, source) is None
    assert (recent.reused, recent.dropped) == (3, 0)


@pytest.mark.parametrize("seed", range(20))
def test_take_follows_the_sorted_list_of_srl(seed):
    random_ = random.Random(seed)
    max_size, reuses = random_.randint(1, 5), random_.randint(1, 4)
    source = Source()
    recent = RecentTrajectories(source, max_size, reuses, 9)
    model, number, dropped, reused = [], 0, 0, 0  # items [uses left, number], least first
    for _ in range(100):
        if random_.random() < 0.5:
            source.fill(number)
            model = sorted([*model, [reuses, number]])
            number += 1
            if len(model) > max_size:
                model.pop(0)
                dropped += 1
        elif model:
            left, expected = model.pop()
            assert taken(recent, source) == expected
            reused += left < reuses
            model = sorted([*model, [left - 1, expected]]) if left > 1 else model
        else:
            assert taken(recent, source) is None
    taken(recent, source)  # collects the newest
    assert source.observed == list(range(number))
    assert (recent.reused, recent.dropped) in ((reused, dropped), (reused + 1, dropped))


def test_take_observes_every_slot_and_releases_it_at_once():
    source = Source()
    recent = RecentTrajectories(source, 2, 1, 9)
    for number in range(5):
        source.fill(number)
    assert [taken(recent, source) for _ in range(3)] == [4.0, 3.0, None]
    assert source.observed == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert source.dropped == [0, 1, 2, 3, 4]
    assert recent.dropped == 3


def test_take_drops_and_counts_outdated_trajectories():
    source = Source()
    recent = RecentTrajectories(source, 4, 5, 2)
    source.fill(1, version=3)
    source.fill(2, version=4)
    assert [taken(recent, source, version) for version in (4, 5, 6)] == [2.0, 1.0, 2.0]
    assert taken(recent, source, 7) is None  # 4 is three versions behind, as 3 is more
    assert recent.dropped == 2


def test_take_returns_copies_with_stacked_frames():
    for frames in (1, 3):
        source = Source(frames)
        recent = RecentTrajectories(source, 16, 1, 9)
        source.fill(7)
        (slot,) = recent.take(0, 0.0, source.observe)
        width = T + 1 + frames - 1
        assert slot.frames.shape == source.slot.frames.shape == (width, ROWS, 5)
        assert slot.is_first_frames.shape == source.slot.is_first_frames.shape
        assert slot.observation.shape == (T + 1, ROWS, 5)
        np.testing.assert_array_equal(slot.extras["value"], np.full((T, ROWS), 7.0))
        np.testing.assert_array_equal(slot.agent_state["core"], np.full((2, ROWS, 4), 7.0))
