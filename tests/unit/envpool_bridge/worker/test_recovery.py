"""What the counters and the slots say of a worker that is gone: where it stood, what it owed, whose episodes are cut."""

import os
import types

import numpy as np
import pytest

from envpool_bridge.envs.protocol import step_rows
from envpool_bridge.shm import segment
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import view_slots
from envpool_bridge.shm.worker_board import ProgressCounters, WorkerBoard
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from envpool_bridge.worker.recovery import BrokenStep, DisabledRows, Recovery

SPEC = EnvSpec("e", ArraySpec((1,), "float32"), DiscreteSpec(2), info_fields=("score",))
T, FIRST = 4, 10  # steps a slot, sequence that the run goes on with
SHAPE = PoolShape(num_workers=1, lanes_per_worker=1, workers_per_lane=1, rows_per_part=4, rollout_length=T, num_slots=2)


class Ring:
    """A ring of one part, with its board and what a successor makes of them."""

    def __init__(self):
        layout = make_layout(SPEC, SHAPE, {})
        self.segment, self.board = segment.create(layout), WorkerBoard(SHAPE)
        self.progress = ProgressCounters(layout, self.segment.buffer, FIRST)
        self.progress.start_at(FIRST)
        self.slots = view_slots(layout, self.segment.buffer)
        self.recovery = Recovery(0, SHAPE, self.slots, self.progress, self.board, 1)

    def observe(self, step):
        """As a worker that has posted all up to the observation of this step."""
        for sequence in range(FIRST, step // T):
            self.progress.commit(0, sequence)
        self.progress.post_observation(0, step)

    def act(self, step):
        self.progress.post_actions(0, step)

    def slot(self, step):
        return self.slots[step // T % SHAPE.num_slots]

    def close(self):
        self.progress.close()
        self.board.close()
        self.slots.clear()
        self.segment.close()


@pytest.fixture
def ring():
    made = Ring()
    yield made
    made.close()


BEGIN = FIRST * T


def test_a_step_is_owed_from_the_action_to_the_observation(ring):
    assert ring.progress.owes_step(0)  # its first observation
    assert not ring.progress.has_started(0)
    ring.observe(BEGIN)
    assert ring.progress.has_started(0)
    assert not ring.progress.owes_step(0)
    ring.act(BEGIN)
    assert ring.progress.owes_step(0)
    ring.observe(BEGIN + 1)
    assert not ring.progress.owes_step(0)


def test_a_slot_is_owed_once_it_is_free(ring):
    ring.observe(BEGIN + 2 * T - 1)
    ring.act(BEGIN + 2 * T - 1)
    assert ring.progress.owes_step(0)
    ring.progress.commit(0, FIRST + 1)  # both slots are full, and with the learner
    assert not ring.progress.owes_step(0)
    ring.progress.release(FIRST)
    assert ring.progress.owes_step(0)


def test_whatever_gets_a_part_on_is_a_beat(ring):
    beats = [ring.progress.beat([0])]
    ring.observe(BEGIN)
    beats.append(ring.progress.beat([0]))
    ring.progress.commit(0, FIRST)
    beats.append(ring.progress.beat([0]))
    assert beats == sorted(set(beats))


def test_recovery_places_a_successor(ring):
    ring.observe(BEGIN + 2)
    ring.slot(BEGIN).observation[2, :, 0] = [5, 6, 7, 8]
    assert ring.recovery.place(0) == (BEGIN + 2, None)
    assert ring.recovery.newest_observation(0)[:, 0].tolist() == [5, 6, 7, 8]
    ring.observe(BEGIN + T - 1)
    assert ring.recovery.place(0) == (BEGIN + T - 1, None)
    ring.progress.commit(0, FIRST)
    ring.slot(BEGIN).observation[T, :, 0] = [1, 2, 3, 4]
    assert ring.recovery.place(0) == (BEGIN + T, FIRST + 1)
    assert ring.recovery.newest_observation(0)[:, 0].tolist() == [1, 2, 3, 4]


def prepare(slot):
    slot.valid[...], slot.is_first[...], slot.terminated[...], slot.truncated[...] = True, False, False, False


def test_recovery_truncates_and_counts_only_open_episodes(ring):
    ring.observe(BEGIN + 2)
    slot = ring.slot(BEGIN)
    prepare(slot)
    # Row 0 is under way, row 1 has just terminated, row 2 was truncated, row 3 has just begun.
    slot.terminated[1, 1] = slot.truncated[1, 2] = slot.is_first[2, 3] = True
    slot.valid[1, 3] = False
    ring.recovery.cut_episodes(0, BEGIN + 2)
    assert slot.truncated[1].tolist() == [True, False, True, False]
    assert slot.truncated[2].tolist() == [True, False, False, False]
    assert slot.terminated[1].tolist() == [False, True, False, False]
    assert not slot.truncated[0].any()
    assert ring.board.episodes_cut() == 1


def test_only_the_rows_that_failed_are_cut(ring):
    ring.observe(BEGIN + 2)
    prepare(ring.slot(BEGIN))
    ring.recovery.cut_episodes(0, BEGIN + 2, slice(1, 3))
    assert ring.slot(BEGIN).truncated[1].tolist() == [False, True, True, False]
    assert ring.board.episodes_cut() == 2


def test_a_slot_that_the_learner_may_have_is_not_written(ring):
    ring.observe(BEGIN + T)
    before, slot = ring.slot(BEGIN), ring.slot(BEGIN + T)
    prepare(before)
    prepare(slot)
    before.terminated[T - 1, 1] = True
    before.valid[T - 1, 3] = False
    ring.recovery.cut_episodes(0, BEGIN + T)
    assert not before.truncated.any()
    assert slot.truncated[0].tolist() == [True, False, True, False]


def test_recovery_at_the_first_step_counts_replayed_episodes(ring):
    ring.observe(BEGIN)
    slot = ring.slot(BEGIN)
    prepare(slot)
    slot.is_first[0] = [True, False, True, False]
    ring.recovery.cut_episodes(0, BEGIN)
    assert slot.truncated[0].tolist() == [False, True, False, True]


def test_recovery_next_episodes_continue_earlier_slots(ring):
    ring.board.record_episodes(0, FIRST, [3, 0, 7, 1])
    first, second = ring.slots
    first.is_first[...], second.is_first[...] = False, False
    first.is_first[0] = True  # those began before: they are counted already
    first.is_first[1:, 1] = [True, False, False, True]
    for _ in range(2):  # a successor may do it again
        ring.board.carry_episodes(0, FIRST + 1, first.is_first[1:])
    assert ring.board.episodes(0, FIRST + 1).tolist() == [3, 2, 7, 1]
    second.is_first[0] = first.is_first[T]
    second.is_first[2, 2] = second.is_first[3, 0] = True
    assert ring.recovery.next_episodes(0, BEGIN + T + 2) == (4, 3, 9, 2)


def test_agents_that_join_begin_no_episode_of_their_environment(ring):
    recovery = Recovery(0, SHAPE, ring.slots, ring.progress, ring.board, rows_per_env=2)
    ring.board.record_episodes(0, FIRST, [3, 3, 7, 7])
    slot = ring.slot(BEGIN)
    slot.is_first[...] = False
    slot.is_first[1] = [True, False, True, True]
    slot.is_first[2] = [False, True, False, False]
    assert recovery.next_episodes(0, BEGIN + 3) == (4, 4, 9, 9)


def test_rows_that_are_given_up_are_counted_by_worker(ring):
    ring.board.count_disabled(0, 2)
    ring.board.count_disabled(0, 1)
    assert ring.board.rows_disabled(0) == 3
    other = WorkerBoard(SHAPE, os.dup(ring.board.descriptor))
    assert other.rows_disabled(0) == 3  # from another process too
    other.start_disabled(0)  # by the successor, which makes all of its rows
    assert ring.board.rows_disabled(0) == 0
    other.close()


def test_nothing_that_the_dead_one_left_at_the_broken_step_stays(ring):
    ring.observe(BEGIN + 1)
    prepare(ring.slot(BEGIN))
    out = step_rows(ring.slot(BEGIN), 1)
    out.terminated[...], out.truncated[...], out.reward[...], out.infos["score"][...] = True, True, 5.0, 5.0
    rows = DisabledRows(4, np.full((4, 1), 9.0, np.float32))
    owner = types.SimpleNamespace(part=0, step=BEGIN + 1, rows=None)
    owner.rows = BrokenStep(owner, rows, ring.recovery)
    owner.rows.step(None, out)
    assert owner.rows is rows  # the steps that follow are its own
    assert np.isnan(out.infos["score"]).all()
    assert not out.terminated.any()
    assert not out.valid.any()
    assert not out.reward.any()
    assert out.is_first.all()
    assert (out.observation == 9.0).all()
    assert out.truncated.all()  # the mark of episodes that were cut
