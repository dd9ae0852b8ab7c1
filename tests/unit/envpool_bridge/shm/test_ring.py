"""Layout, segment and counters."""

import errno
import os
import random
from pathlib import Path

import numpy as np
import pytest

from envpool_bridge.errors import LayoutMismatchError, SegmentTooLargeError, UserError
from envpool_bridge.shm import segment
from envpool_bridge.shm.layout import ALIGNMENT, PoolShape, make_layout
from envpool_bridge.shm.ring import Counters, LaneCommand
from envpool_bridge.shm.slots import view_slots
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, spec_from_dict, spec_to_dict
from tests.shared_names import names_left

SPEC = EnvSpec("e", ArraySpec((3,), "float32", (-1.0, -2.0, -3.0), 4.0), DiscreteSpec(2, start=1))
SHAPE = PoolShape(num_workers=4, lanes_per_worker=2, workers_per_lane=2, rows_per_part=3, rollout_length=5, num_slots=3)
EXTRAS = {"behavior_log_prob": ArraySpec((), "float32")}


@pytest.fixture
def ring():
    layout = make_layout(SPEC, SHAPE, EXTRAS)
    created = segment.create(layout)
    counters = Counters(layout, created.buffer)
    yield layout, created, counters
    counters.close()
    created.close()


def test_a_spec_survives_json():
    assert spec_from_dict(spec_to_dict(SPEC)) == SPEC


def test_every_row_belongs_to_one_part_of_one_lane_of_one_worker():
    assert (SHAPE.num_lanes, SHAPE.num_parts, SHAPE.num_rows) == (4, 8, 24)
    rows = [row for part in range(8) for row in range(24)[SHAPE.part_rows(part)]]
    assert rows == list(range(24))
    for worker in range(4):
        parts = SHAPE.parts_of_worker(worker)
        assert len({SHAPE.lane_of_part(part) for part in parts}) == 2
        assert {SHAPE.worker_of_part(part) for part in parts} == {worker}
    for lane in range(4):
        lane_rows = range(24)[SHAPE.lane_rows(lane)]
        assert list(lane_rows) == [
            row for part in SHAPE.parts_of_lane(lane) for row in range(24)[SHAPE.part_rows(part)]
        ]


def test_fields_are_aligned_and_do_not_overlap():
    layout = make_layout(SPEC, SHAPE, EXTRAS)
    end = 0
    for field in layout.fields:
        assert field.offset_bytes % ALIGNMENT == 0
        assert field.offset_bytes >= end
        end = field.offset_bytes + int(np.prod(field.shape)) * np.dtype(field.dtype).itemsize
    assert layout.slot_bytes >= end
    assert layout.slots_offset_bytes % ALIGNMENT == 0


def test_whatever_changes_the_layout_changes_its_hash():
    layouts = [
        make_layout(SPEC, SHAPE, EXTRAS),
        make_layout(SPEC, SHAPE, {}),
        make_layout(EnvSpec("e", SPEC.observation, DiscreteSpec(3)), SHAPE, EXTRAS),
        make_layout(SPEC, PoolShape(4, 2, 2, 3, 5, 2), EXTRAS),
    ]
    assert len({layout.layout_hash for layout in layouts}) == 4


def test_views_of_different_slots_and_fields_never_share_memory(ring):
    layout, created, _ = ring
    slots = view_slots(layout, created.buffer)
    arrays = [array for slot in slots for array in (slot.observation, slot.reward, slot.extras["behavior_log_prob"])]
    for number, array in enumerate(arrays):
        array[...] = number
    assert [int(array.flat[-1]) for array in arrays] == list(range(len(arrays)))


def test_sizes_that_do_not_divide_are_rejected():
    with pytest.raises(UserError, match="workers_per_lane must divide num_workers: got 2 and 3"):
        PoolShape(3, 1, 2, 1, 1, 1)
    with pytest.raises(UserError, match="rows_per_part must be at least 1: got 0"):
        PoolShape(1, 1, 1, 0, 1, 1)


def test_a_segment_has_no_name_and_is_ours_alone(ring):
    _, created, _ = ring
    assert not names_left()
    assert os.fstat(created.descriptor).st_mode & 0o777 == 0o600


def test_attach_rejects_another_layout_or_run(ring):
    layout, created, _ = ring
    other = make_layout(SPEC, PoolShape(2, 2, 2, 6, 5, 3), EXTRAS)
    with pytest.raises(LayoutMismatchError):
        segment.attach(os.dup(created.descriptor), other, created.run_id)
    with pytest.raises(LayoutMismatchError, match="run id"):
        segment.attach(os.dup(created.descriptor), layout, bytes(16))


def test_a_full_dev_shm_is_a_clear_error(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(SegmentTooLargeError, match="enlarge /dev/shm"):
        segment.create(make_layout(SPEC, SHAPE, EXTRAS))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_lane_is_ready_when_its_last_part_has_posted(ring):
    _, _, counters = ring
    assert counters.post_observation(0, 0) is False
    assert counters.ready_lanes() == []
    assert not counters.is_ready(0)
    assert counters.observations_posted(0) == 0
    assert counters.post_observation(1, 0) is True
    assert counters.ready_lanes() == [0]
    assert counters.is_ready(0)
    counters.post_actions(0, 0, LaneCommand.RESET)
    assert counters.ready_lanes() == []
    assert counters.actions_posted(0) == 1
    assert counters.is_reset(0)


def test_resumed_ring_starts_at_the_given_sequence(ring):
    _, _, counters = ring
    counters.start_at(7)
    assert counters.actions_posted(3) == 35
    assert counters.num_committed() == 7
    assert counters.can_fill(9)
    assert not counters.can_fill(10)


def test_slots_are_given_back_in_order_only(ring):
    _, _, counters = ring
    with pytest.raises(RuntimeError, match="expected sequence 0, got 1"):
        counters.release(1)


@pytest.mark.parametrize("seed", range(5))
def test_slots_follow_the_model_of_a_bounded_queue(ring, seed):
    """Random commits, leases and releases against plain numbers."""
    _, _, counters = ring
    rng = random.Random(seed)
    committed, leased, released = [0] * SHAPE.num_parts, 0, 0
    for _ in range(2000):
        move = rng.randrange(3)
        if move == 0:
            part = rng.randrange(SHAPE.num_parts)
            assert counters.can_fill(committed[part]) == (committed[part] < released + SHAPE.num_slots)
            if counters.can_fill(committed[part]):
                counters.commit(part, committed[part])
                committed[part] += 1
        elif move == 1 and leased < min(committed):
            leased += 1
        elif move == 2 and released < leased:
            counters.release(released)
            released += 1
        assert counters.num_committed() == min(committed)
        assert counters.can_fill(released + SHAPE.num_slots - 1)
        assert not counters.can_fill(released + SHAPE.num_slots)
