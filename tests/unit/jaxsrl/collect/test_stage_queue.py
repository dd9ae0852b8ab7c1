"""The stage of each trajectory, and the log of the episodes' stages."""

import numpy as np

from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.collect.episode_log import EpisodeLog
from jaxsrl.collect.stage_queue import StageQueue

SPEC = EnvSpec("e", ArraySpec((1,), "float32"), DiscreteSpec(2), stage=3)


def test_a_change_applies_after_the_slots_of_the_ring():
    queue = StageQueue((0, 0, 0))
    assert queue.take() == 0
    queue.later = 5
    assert [queue.take() for _ in range(4)] == [0, 0, 5, 5]
    queue.later = 6
    assert StageQueue(queue.stages).stages == (5, 5, 6)


def test_resize_keeps_what_is_decided():
    queue = StageQueue((1, 2, 3))
    queue.resize(4)
    assert queue.stages == (1, 2, 3, 3, 3)
    queue.resize(1)
    assert queue.stages == (1, 3)


def slot_with_resets(*resets):
    """A slot of five steps and three rows, with resets at (step, row)."""
    (slot,) = allocate_slots(make_layout(SPEC, PoolShape(1, 1, 1, 3, 5, 1), {}))
    slot.valid[...] = True
    for step, row in resets:
        slot.is_first[step + 1, row], slot.valid[step, row] = True, False
    return slot


def test_log_restores_the_stage_of_each_rows_episode():
    log = EpisodeLog(3, 0, SPEC)
    log.stages.resize(2)
    log.observe(slot_with_resets((1, 0)))
    log.stages.later = 4
    log.observe(slot_with_resets((0, 1)))
    log.observe(slot_with_resets())
    assert log.row_stages.tolist() == [3, 3, 3]
    log.observe(slot_with_resets((2, 1), (4, 1)))
    assert log.row_stages.tolist() == [3, 4, 3]
    again = EpisodeLog(3, 20, SPEC)
    again.stages = StageQueue(log.stages.stages)
    assert again.fits(log.to_arrays())
    assert again.restore(log.to_arrays()).stages == (3, 4, 3)


def test_too_long_an_episode_restarts_at_the_present_stage():
    log = EpisodeLog(3, 0, SPEC, max_steps=6)
    log.stages.resize(2)
    log.stages.later = 4
    for resets in ([(0, 0)], [(3, 1)], [(3, 0)]):
        log.observe(slot_with_resets(*resets))
    again = EpisodeLog(3, 15, SPEC)
    again.stages = StageQueue(log.stages.stages)
    reset = again.restore(log.to_arrays())
    assert again.restarted.tolist() == [False, False, True]
    assert reset.stages == (4, 3, 4)
    assert np.array_equal(again.row_stages, [4, 3, 4])
