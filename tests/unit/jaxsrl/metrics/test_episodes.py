"""Episodes: their returns, and the log from which a run resumes, against models that keep everything."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import view_slots
from envpool_bridge.spec.specs import AgentSpec, ArraySpec, DiscreteSpec, EnvSpec
from envpool_bridge.spec.tasks import Task
from jaxsrl.collect.episode_log import EpisodeLog
from jaxsrl.metrics.episodes import WINDOW, EpisodeTracker, RowGroups, row_groups

FIELDS = ("action", "valid", "reward", "terminated", "truncated")
CONTINUOUS = ArraySpec((2,), "float32")
SPEC = EnvSpec("e", ArraySpec((1,), "float32"), DiscreteSpec(9))


def legal_run(seed, slots=8, steps=5, rows=4, ends=0.15, action=None):
    """Slots of a random run with NEXT_STEP autoreset, and each field as one array over all steps."""
    spec = EnvSpec("e", ArraySpec((1,), "float32"), action or DiscreteSpec(9))
    layout = make_layout(spec, PoolShape(1, 1, 1, rows, steps, slots), {})
    views = view_slots(layout, memoryview(bytearray(layout.total_bytes)))
    rng = np.random.default_rng(seed)
    ended = np.zeros(rows, bool)
    for slot in views:
        slot.observation[...] = rng.normal(size=slot.observation.shape)
        for t in range(steps):
            slot.action[t] = rng.integers(0, 9, slot.action[t].shape)
            slot.valid[t], slot.is_first[t + 1] = ~ended, ended
            slot.reward[t] = np.where(ended, 0.0, rng.integers(-3, 4, rows))  # whole numbers: sums are exact
            end = (rng.random(rows) < ends) & ~ended
            kind = rng.random(rows) < 0.5
            slot.terminated[t], slot.truncated[t] = end & kind, end & ~kind
            ended = end
    return views, {name: np.concatenate([getattr(slot, name) for slot in views]) for name in FIELDS}


def episodes_of(run):
    """(return, length) of every finished episode in the order of their ends, rows of one step in order."""
    finished = []
    for t in range(len(run["reward"])):
        for row in np.flatnonzero(run["terminated"][t] | run["truncated"][t]):
            begin = t
            while begin > 0 and run["valid"][begin - 1, row]:
                begin -= 1
            finished.append((float(run["reward"][begin : t + 1, row].sum()), t + 1 - begin))
    return finished


class LogModel:
    """Every row's episode and all its actions, kept as plain lists."""

    def __init__(self, rows):
        self.episode, self.actions = [0] * rows, [[] for _ in range(rows)]

    def observe(self, slot):
        for action, valid in zip(slot.action, slot.valid, strict=True):
            for row in range(len(valid)):
                if valid[row]:
                    self.actions[row].append(np.array(action[row]))
                else:
                    self.episode[row] += 1
                    self.actions[row] = []


def assert_replays(reset, model):
    assert reset.episodes == tuple(model.episode)
    for actions, expected in zip(reset.actions, model.actions, strict=True):
        if expected:
            np.testing.assert_array_equal(actions, np.stack(expected))
        else:
            assert actions is None


@pytest.mark.parametrize("ends", [0.02, 0.15, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_returns_and_lengths_are_those_of_a_loop_over_episodes(seed, ends):
    slots, run = legal_run(seed, ends=ends, slots=16)
    tracker = EpisodeTracker(4)
    for slot in slots:
        tracker.observe(slot)
    finished = episodes_of(run)
    recent = finished[-WINDOW:]
    assert tracker.num_episodes == len(finished)
    assert tracker.metrics() == {
        "episode/return_mean": pytest.approx(np.mean([value for value, _ in recent])),
        "episode/return_max": max(value for value, _ in recent),
        "episode/length_mean": pytest.approx(np.mean([length for _, length in recent])),
        "episode/count": len(finished),
        "episode/return_sum": sum(value for value, _ in finished),
    }


def test_only_the_newest_hundred_episodes_count():
    slots, run = legal_run(0, slots=60, ends=0.4)
    tracker = EpisodeTracker(4)
    for slot in slots:
        tracker.observe(slot)
    finished = episodes_of(run)
    assert len(finished) > 2 * WINDOW
    newest = [value for value, _ in finished[-WINDOW:]]
    assert tracker.metrics()["episode/return_mean"] == pytest.approx(np.mean(newest))
    assert tracker.metrics()["episode/return_mean"] != pytest.approx(np.mean([value for value, _ in finished]))


def test_before_the_first_episode_ends_there_are_no_means():
    slots, _ = legal_run(0, ends=0.0)
    tracker = EpisodeTracker(4)
    tracker.observe(slots[0])
    assert tracker.metrics() == {}
    again = EpisodeTracker(4)
    again.restore(tracker.to_arrays())
    assert again.metrics() == {}


@pytest.mark.parametrize("cut", [0, 1, 7, 15])
def test_tracker_resumes_from_its_arrays(cut):
    slots, _ = legal_run(3, slots=16)
    whole, first, second = (EpisodeTracker(4) for _ in range(3))
    for slot in slots:
        whole.observe(slot)
    for slot in slots[:cut]:
        first.observe(slot)
    saved = first.to_arrays()
    for slot in slots[cut:]:
        first.observe(slot)  # what was saved must not be a view of what goes on
    second.restore(saved)
    for slot in slots[cut:]:
        second.observe(slot)
    assert second.metrics() == whole.metrics() == first.metrics()
    for name, values in whole.to_arrays().items():
        np.testing.assert_array_equal(second.to_arrays()[name], values)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 8), st.sampled_from([0.03, 0.2, 0.95]), st.booleans())
def test_a_log_holds_what_every_row_did_in_its_episode(seed, cut, ends, continuous):
    slots, _ = legal_run(seed, ends=ends, action=CONTINUOUS if continuous else None)
    spec = dataclasses.replace(SPEC, action=CONTINUOUS) if continuous else SPEC
    log, model = EpisodeLog(4, 100, spec), LogModel(4)
    for slot in slots[:cut]:
        log.observe(slot)
        model.observe(slot)
    restored = EpisodeLog(4, 100 + 5 * cut, spec)
    assert_replays(restored.restore(log.to_arrays()), model)
    # A run that is interrupted again, before or after more slots, must still know the whole episode.
    assert_replays(EpisodeLog(4, 100 + 5 * cut, spec).restore(restored.to_arrays()), model)
    for slot in slots[cut:]:
        restored.observe(slot)
        model.observe(slot)
    assert_replays(EpisodeLog(4, 140, spec).restore(restored.to_arrays()), model)


def test_log_stores_the_last_observation():
    slots, _ = legal_run(0)
    log = EpisodeLog(4, 0, SPEC)
    assert log.last_observation is None
    assert "observation" not in log.to_arrays()
    log.observe(slots[0])
    expected = slots[0].observation[-1].copy()
    slots[0].observation[...] = np.nan  # the slot is given back and filled again
    restored = EpisodeLog(4, 5, SPEC)
    restored.restore(log.to_arrays())
    np.testing.assert_array_equal(restored.last_observation, expected)


def test_a_log_does_not_share_memory_with_the_slot():
    slots, _ = legal_run(0, ends=0.0)
    log = EpisodeLog(4, 0, SPEC)
    log.observe(slots[0])
    expected = slots[0].action.copy()
    slots[0].action[...] = -1
    reset = EpisodeLog(4, 5, SPEC).restore(log.to_arrays())
    np.testing.assert_array_equal(np.stack(reset.actions, axis=1), expected)


def test_a_log_forgets_what_no_episode_needs():
    slots, _ = legal_run(0, slots=60, ends=0.4)
    log = EpisodeLog(4, 0, SPEC)
    for slot in slots:
        log.observe(slot)
    assert len(log._blocks) < 10


def test_only_rows_whose_episode_is_too_long_begin_anew():
    slots, _ = legal_run(0, slots=6, ends=0.0)
    for slot in slots:
        slot.valid[...], slot.is_first[...] = True, False
    slots[-1].valid[1, 2], slots[-1].is_first[2, 2] = (
        False,
        True,
    )  # row 2 begins an episode in the last slot, the others have never ended
    log, model = EpisodeLog(4, 0, SPEC, max_steps=10), LogModel(4)
    for slot in slots:
        log.observe(slot)
        model.observe(slot)
    reset = EpisodeLog(4, 30, SPEC).restore(log.to_arrays())
    assert reset.episodes == (1, 1, 1, 1)  # row 2 was in its episode 1, the others go to theirs
    np.testing.assert_array_equal(reset.actions[2], np.stack(model.actions[2]))
    assert [reset.actions[row] for row in (0, 1, 3)] == [None, None, None]


def test_tracker_reports_infos_and_seconds_at_episode_end():
    spec = dataclasses.replace(SPEC, info_fields=("score", "won"))
    layout = make_layout(spec, PoolShape(2, 1, 2, 1, 4, 1), {})
    slot = view_slots(layout, memoryview(bytearray(layout.total_bytes)))[0]
    slot.valid[...] = True
    slot.stepped_at[...] = [[10.0, 20.0], [11.0, 22.0], [13.0, 24.0], [16.0, 26.0]]
    slot.infos["score"][...] = np.arange(8).reshape(4, 2)
    slot.infos["won"][...] = np.nan
    slot.terminated[1] = True  # of both rows, whose beginnings nobody saw
    slot.is_first[3], slot.valid[2] = True, False
    slot.truncated[3, 0] = True
    slot.infos["won"][3, 0] = 1.0
    tracker = EpisodeTracker(2, spec.info_fields)
    tracker.observe(slot)
    assert tracker.metrics()["episode/info/score_mean"] == pytest.approx((2 + 3 + 6) / 3)
    assert tracker.metrics()["episode/info/won_mean"] == 1.0
    assert tracker.timings() == {"episode/seconds_mean": 16.0 - 13.0}
    again = EpisodeTracker(2, spec.info_fields)
    again.restore(tracker.to_arrays())
    assert again.metrics() == tracker.metrics()
    assert again.timings() == {}


@pytest.mark.parametrize("at", [(0, 3), (1, 0)], ids=["within a slot", "at a slot's first step"])
def test_an_episode_that_a_failure_cut_is_in_no_mean(at):
    views, _ = legal_run(0, slots=3, ends=0.0)
    slot, step = at
    for view in views:
        view.reward[...] = 1.0
    broken = views[slot]
    # What the pool writes of a step that broke: see docs/operations/reliability.md.
    broken.valid[step, 2], broken.truncated[step, 2], broken.reward[step, 2] = False, True, 0.0
    broken.is_first[step + 1, 2] = True
    if step:
        broken.truncated[step - 1, 2] = True
    views[2].terminated[4] = True
    tracker = EpisodeTracker(4)
    for view in views:
        tracker.observe(view)
    assert tracker.num_episodes == 4
    after = 15 - (slot * 5 + step) - 1
    assert tracker.metrics()["episode/return_mean"] == (3 * 15 + after) / 4
    assert tracker.metrics()["episode/length_mean"] == (3 * 15 + after) / 4


@pytest.mark.parametrize("rows", [[], [1], [0, 1, 2, 3]])
def test_tracker_drops_returns_of_rows_restarted_on_resume(rows):
    slots, _ = legal_run(0, slots=3, ends=0.0)
    for slot in slots:
        slot.reward[...] = 1.0
    first, second = EpisodeTracker(4), EpisodeTracker(4)
    first.observe(slots[0])
    second.restore(first.to_arrays())
    slots[1].is_first[0, rows] = True  # what a native vector environment shows after any reset
    slots[2].terminated[4] = True
    for slot in slots[1:]:
        second.observe(slot)
    expected = (len(rows) * 10 + (4 - len(rows)) * 15) / 4
    assert second.metrics()["episode/return_mean"] == second.metrics()["episode/length_mean"] == expected


def test_the_reward_of_a_step_that_is_not_valid_is_in_no_return():
    slots, _ = legal_run(0, slots=1, ends=0.0)
    slot = slots[0]
    slot.reward[...] = 1.0
    slot.terminated[1, 0] = True
    slot.valid[2, 0], slot.is_first[3, 0], slot.reward[2, 0] = False, True, 100.0  # returned by the environment's reset
    slot.terminated[4] = True
    tracker = EpisodeTracker(4)
    tracker.observe(slot)
    assert sorted(tracker.to_arrays()["recent"][:, 0].tolist()) == [2.0, 2.0, 5.0, 5.0, 5.0]


def test_log_of_restarted_rows_has_only_the_new_episode():
    slots, _ = legal_run(0, slots=2, ends=0.0)
    first = EpisodeLog(4, 0, SPEC)
    first.observe(slots[0])
    log = EpisodeLog(4, 5, SPEC)
    log.restore(first.to_arrays())
    slots[1].is_first[0, 2] = True
    log.observe(slots[1])
    assert log.to_arrays()["lengths"].tolist() == [10, 10, 5, 10]


def test_log_bounds_memory_and_marks_rows_restarted():
    slots, _ = legal_run(0, slots=40, ends=0.0)
    for slot in slots[:39]:
        slot.is_first[1:] = False
    slots[38].is_first[5, :3] = True  # three rows start an episode in the end, row 3 never does
    slots[38].valid[4, :3] = False
    row_bytes = slots[0].action.dtype.itemsize
    log = EpisodeLog(4, 0, SPEC, max_bytes=50 * 4 * row_bytes)
    for count, slot in enumerate(slots[:39], 1):
        log.observe(slot)
        held = sum(block.nbytes for _, block in log._blocks)
        assert held <= min(5 * count, 50 + 5) * 4 * row_bytes
    assert not log._blocks  # no block is needed by any episode that can still be replayed
    log.observe(slots[39])
    arrays = log.to_arrays()
    assert arrays["lengths"].tolist() == [5, 5, 5, -1]
    restored = EpisodeLog(4, 200, SPEC)
    reset = restored.restore(arrays)
    assert restored.restarted.tolist() == [False, False, False, True]
    assert reset.episodes == (1, 1, 1, 1)


def test_fits_checks_rows_and_spaces():
    slots, _ = legal_run(0)
    log, tracker = EpisodeLog(4, 0, SPEC), EpisodeTracker(4)
    log.observe(slots[0])
    tracker.observe(slots[0])
    assert EpisodeLog(4, 5, SPEC).fits(log.to_arrays())
    assert EpisodeTracker(4).fits(tracker.to_arrays())
    assert not EpisodeLog(3, 5, SPEC).fits(log.to_arrays())
    assert not EpisodeTracker(3).fits(tracker.to_arrays())
    assert not EpisodeTracker(4, ("score",)).fits(tracker.to_arrays())
    assert not EpisodeLog(4, 5, dataclasses.replace(SPEC, action=CONTINUOUS)).fits(log.to_arrays())
    assert not EpisodeLog(4, 5, dataclasses.replace(SPEC, observation=ArraySpec((2,), "float32"))).fits(log.to_arrays())
    assert not EpisodeLog(4, 5, SPEC, agent_state=ArraySpec((2,), "float32")).fits(log.to_arrays())
    assert not EpisodeLog(4, 5, SPEC).fits({})
    assert not EpisodeTracker(4).fits({})


def test_each_task_has_means_of_its_own_episodes():
    views, _ = legal_run(4, slots=60, ends=0.5)
    tasks = np.array([0, 1, 1, 0])
    tracker = EpisodeTracker(4, (), RowGroups(("easy", "hard"), tasks))
    for slot in views:
        tracker.observe(slot)
    finished = []
    returns, lengths = np.zeros(4), np.zeros(4, int)
    for slot in views:
        for t in range(len(slot.reward)):
            returns += np.where(slot.valid[t], slot.reward[t], 0.0)
            lengths += slot.valid[t]
            for row in np.flatnonzero(slot.terminated[t] | slot.truncated[t]):
                finished.append((tasks[row], returns[row], lengths[row]))
                returns[row], lengths[row] = 0.0, 0
    metrics = tracker.metrics()
    assert len(finished) > 2 * WINDOW
    for task, name in enumerate(("easy", "hard")):
        own = [episode for episode in finished[-2 * WINDOW :] if episode[0] == task][-WINDOW:]
        assert metrics[f"episode/return/{name}"] == np.mean([value for _, value, _ in own])
        assert metrics[f"episode/length/{name}"] == np.mean([length for _, _, length in own])
    again = EpisodeTracker(4, (), RowGroups(("easy", "hard"), tasks))
    assert again.fits(tracker.to_arrays())
    again.restore(tracker.to_arrays())
    assert again.metrics() == metrics
    assert not EpisodeTracker(4).fits(tracker.to_arrays())
    plain = EpisodeTracker(4)
    for slot in views:
        plain.observe(slot)
    assert plain.metrics().items() <= metrics.items()


def spec_of(*names, tasks=()):
    agents = tuple(AgentSpec(name, SPEC.observation, SPEC.action) for name in names)
    return dataclasses.replace(SPEC, agents=agents, tasks=tasks)


def test_rows_of_one_agent_or_task_are_a_group():
    assert row_groups(SPEC, 4).of_row is None
    agents = row_groups(spec_of("hider_0", "seeker_0", "seeker_1"), 4, first_row=3)
    assert agents.names == ("hider_0", "seeker_0", "seeker_1")
    assert agents.of_row.tolist() == [0, 1, 2, 0]
    many = row_groups(spec_of(*[f"red_{n}" for n in range(9)], *[f"blue_{n}" for n in range(8)]), 34)
    assert many.names == ("red", "blue")
    assert many.of_row.tolist() == 2 * (9 * [0] + 8 * [1])
    both = row_groups(spec_of("left", "right", tasks=(Task("easy"), Task("hard"))), 3, first_row=2)
    assert both.names == ("easy", "hard")
    assert both.of_row.tolist() == [1, 1, 0]
