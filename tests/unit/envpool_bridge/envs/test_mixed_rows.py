"""Rows that differ on purpose: tasks of rows, staggered first episodes and stages of resets."""

from functools import partial

import numpy as np
import pytest

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.mixed_rows import mixed_source
from envpool_bridge.envs.protocol import EpisodeReset, first_rows, step_rows
from envpool_bridge.envs.seeding import first_episode_steps
from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from envpool_bridge.spec.specs import spec_from_dict, spec_to_dict
from tests.support.staged_env import StagedEnv, WideStagedEnv


def slot_of(spec, rows, steps):
    (slot,) = allocate_slots(make_layout(spec, PoolShape(1, 1, 1, rows, steps, 1), {}))
    step_rows(slot, slice(0, steps)).prepare()
    return slot


def play(source, rows, steps, reset=None, row_ids=None, actions=None, read_stage=None):
    """Returns the slot of `steps` steps of rows."""
    slot = slot_of(source.spec(), rows, steps)
    made = source.make_rows(row_ids or range(rows), 9, False)
    if read_stage is not None:
        made.read_stage = read_stage
    made.reset(reset or EpisodeReset((0,) * rows, (None,) * rows), first_rows(slot))
    for t in range(steps):
        if actions is not None:
            slot.action[t] = actions[t]
        made.step(slot.action[t], step_rows(slot, t))
    made.close()
    return slot


def sources(**lengths):
    return {name: GymnasiumSource(partial(StagedEnv, length), name) for name, length in lengths.items()}


def test_mixed_rows_play_the_task_of_their_row_id():
    source = mixed_source(sources(short=2, long=4), (1.0, 3.0))
    whole = play(source, 8, 4).terminated
    assert [task.name for task in source.spec().tasks] == ["short", "long"]
    assert whole[1].sum() == 2  # a quarter of the rows ends after two steps, the others after four
    assert whole[3].sum() == 6
    part = play(source, 3, 4, row_ids=range(4, 7)).terminated
    np.testing.assert_array_equal(part, whole[:, 4:7])


def test_mixed_source_rejects_unequal_spaces():
    wide = {**sources(narrow=2), "wide": GymnasiumSource(WideStagedEnv)}
    with pytest.raises(UserError, match=r"row 1 \(wide\) differs from row 0 \(narrow\): observation .*\(4,\).*\(3,\)"):
        mixed_source(wide)
    with pytest.raises(UserError, match="stagger is 4, not 0"):
        mixed_source({**sources(a=2), "b": GymnasiumSource(StagedEnv, stagger=4)})
    with pytest.raises(UserError, match="one positive share for each"):
        mixed_source(sources(a=2, b=3), (1.0, 0.0))
    with pytest.raises(UserError, match="stepped together"):
        mixed_source({**sources(a=2), "b": EnvConfig("CartPole-v1", "gymnasium_vector").source()})


def test_add_task_marks_the_rows_own_task():
    source = mixed_source(sources(a=2, b=2), add_task=True)
    slot = play(source, 3, 1)
    np.testing.assert_array_equal(slot.observation["task"][1], [[1, 0], [0, 1], [1, 0]])
    assert slot.observation["observation"].shape == (2, 3, 3)


def test_evaluation_plays_all_tasks_equally_and_whole():
    each = {name: GymnasiumSource(partial(StagedEnv, 4), stagger=3) for name in "ab"}
    source = mixed_source(each, (1.0, 9.0)).for_evaluation()
    assert [task.share for task in source.spec().tasks] == [1.0, 1.0]
    assert not play(source, 4, 4).truncated.any()


@pytest.mark.parametrize("add_task", [False, True])
def test_evaluated_tasks_have_their_own_environments(add_task):
    each = {
        name: GymnasiumSource(partial(StagedEnv, 4), evaluation_env=partial(StagedEnv, n))
        for n, name in ((2, "a"), (3, "b"))
    }
    source = mixed_source(each, add_task=add_task)
    evaluated = source.for_evaluation()
    assert [one.spec().observation for one in evaluated.sources] == [source.spec().observation] * 2
    np.testing.assert_array_equal(play(evaluated, 2, 3).terminated[1:], [[True, False], [False, True]])
    assert not play(source, 2, 3).terminated.any()


def test_config_makes_tasks_of_ids_and_of_row_kwargs():
    by_id = EnvConfig(
        "CartPole-v1, CartPole-v0", kwargs='{"max_episode_steps": 7}', row_kwargs='[{}, {"sutton_barto_reward": true}]'
    )
    assert {name: config.kwargs for name, config in by_id.tasks().items()} == {
        "CartPole-v1": '{"max_episode_steps": 7}',
        "CartPole-v0": '{"max_episode_steps": 7, "sutton_barto_reward": true}',
    }
    named = EnvConfig(row_kwargs='{"easy": {"max_episode_steps": 3}, "hard": {}}', row_shares=(1, 2), stage=2)
    spec = named.source().spec()
    assert [(task.name, task.share) for task in spec.tasks] == [("easy", 1.0), ("hard", 2.0)]
    assert (spec.env_id, spec.stage) == ("CartPole-v1", 2)
    assert spec_from_dict(spec_to_dict(spec)) == spec
    assert list(EnvConfig(row_kwargs="[{}, {}, {}]").tasks()) == ["0", "1", "2"]
    assert play(named.source(), 2, 3).truncated[2].tolist() == [False, True]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (EnvConfig("A,A"), "different names"),
        (EnvConfig("A,B,C", row_kwargs="[{}, {}]"), "one entry for each id"),
        (EnvConfig(row_kwargs="[1, 2]"), "must hold dicts"),
        (EnvConfig(row_shares=(1.0, 2.0)), "are for several tasks"),
        (EnvConfig(row_kwargs="[{}]"), "at least two tasks"),
        (EnvConfig("CartPole-v1", "gymnasium_vector", stage=1), "stage is not for suite"),
        (EnvConfig("CartPole-v1", "gymnasium_vector", stagger=1), "stagger is not for suite"),
    ],
)
def test_config_rejects_bad_tasks(config, says):
    with pytest.raises(UserError, match=says):
        config.source()


def test_first_episode_steps_spread_evenly():
    steps = np.array([first_episode_steps(5, env, 100) for env in range(50)])
    assert steps.min() >= 1
    assert steps.max() <= 100
    assert np.diff(np.sort(steps)).max() <= 5  # 50 of 100 places: about two apart
    assert (steps != [first_episode_steps(6, env, 100) for env in range(50)]).any()


def test_stagger_truncates_first_episodes_only():
    source = GymnasiumSource(partial(StagedEnv, 20), stagger=6)
    slot = play(source, 4, 40)
    for row in range(4):
        first = first_episode_steps(9, row, 6)
        truncated, terminated = np.flatnonzero(slot.truncated[:, row]), np.flatnonzero(slot.terminated[:, row])
        assert truncated.tolist() == [first - 1]
        assert terminated.tolist() == [first + 20]  # a step that resets, then 20 steps


@pytest.mark.parametrize("played", range(1, 8))
def test_staggered_rows_continue_after_a_replay(played):
    source, rows = GymnasiumSource(partial(StagedEnv, 20), stagger=6), 4
    actions = np.random.default_rng(0).integers(0, 2, (16, rows)).astype(np.int32)
    whole = play(source, rows, 16, actions=actions)
    episodes, replayed = [], []
    for row in range(rows):
        resets = np.flatnonzero(whole.is_first[1 : played + 1, row])
        episodes.append(len(resets))
        replayed.append(actions[resets[-1] + 1 if len(resets) else 0 : played, row])
    again = play(source, rows, 16 - played, EpisodeReset(tuple(episodes), tuple(replayed)), actions=actions[played:])
    np.testing.assert_array_equal(again.observation, whole.observation[played:])
    np.testing.assert_array_equal(again.truncated, whole.truncated[played:])


def test_resets_receive_the_stage_of_their_step():
    source = GymnasiumSource(partial(StagedEnv, 2), stage=4)
    stages = play(source, 2, 6).observation[:, :, 0]
    assert (stages == 4).all()
    counted = iter(range(100))
    stages = play(source, 1, 6, read_stage=lambda row: next(counted)).observation[:, 0, 0]
    assert stages.tolist() == [0, 0, 0, 1, 1, 1, 2]
    reset = EpisodeReset((0, 0), (None, None), stages=(7, 8))
    assert play(source, 2, 3, reset).observation[:, :, 0].tolist() == [[7, 8], [7, 8], [7, 8], [4, 4]]


def test_rows_without_a_stage_get_no_options():
    assert (play(GymnasiumSource(StagedEnv), 2, 8).observation[:, :, 0] == -1).all()
