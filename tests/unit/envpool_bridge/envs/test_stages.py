"""Environments of several stages: which one an episode is played in, what is rejected."""

import dataclasses

import gymnasium
import numpy as np
import pytest

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.mixed_rows import mixed_source
from envpool_bridge.envs.probes.team import TEAM_PROBES
from envpool_bridge.envs.stages import at_stage, staged_source
from envpool_bridge.errors import UserError
from tests.support.staged_env import StagedEnv, WideStagedEnv


def lengths(*steps):
    return [GymnasiumSource(lambda length=length: StagedEnv(length), "Steps") for length in steps]


def episode_length(env, **reset):
    env.reset(seed=0, **reset)
    steps, done = 0, False
    while not done:
        _, _, terminated, truncated, _ = env.step(0)
        steps, done = steps + 1, terminated or truncated
    return steps


def test_the_stage_of_a_reset_chooses_the_environment():
    env = staged_source(lengths(2, 3, 5), "Steps").make_env()
    played = [episode_length(env, options={"stage": stage}) for stage in (0, 2, 1, 0)]
    assert played == [2, 5, 3, 2]
    assert episode_length(env) == 5, "the last stage is the task itself"
    env.close()
    env.close()


def test_an_episode_of_a_stage_equals_that_of_its_environment():
    staged, alone = staged_source(lengths(2, 3), "Steps").make_env(), StagedEnv(2)
    first, _ = staged.reset(seed=7, options={"stage": 0})
    expected, _ = alone.reset(seed=7)
    np.testing.assert_array_equal(first, expected)
    for action in (1, 0):
        np.testing.assert_array_equal(staged.step(action)[0], alone.step(action)[0])


def test_evaluation_plays_the_stage_by_its_own_environment():
    sources = [GymnasiumSource(lambda: StagedEnv(9), evaluation_env=lambda n=n: StagedEnv(n)) for n in (2, 3)]
    staged = staged_source([*sources, *lengths(5)], "Steps")
    evaluated = staged.for_evaluation().make_env()
    assert [episode_length(evaluated, options={"stage": stage}) for stage in (0, 1, 2)] == [2, 3, 5]
    trained = staged.make_env()
    assert [episode_length(trained, options={"stage": stage}) for stage in (0, 1, 2)] == [9, 9, 5]


def test_stages_that_do_not_exist_are_rejected():
    env = staged_source(lengths(2, 3), "Steps").make_env()
    with pytest.raises(UserError, match="Steps has stages 0 to 1: got 2"):
        env.reset(options={"stage": 2})


def test_unequal_spaces_are_rejected():
    with pytest.raises(UserError, match="stage 0 of Wide differs from the last one: observation"):
        staged_source([GymnasiumSource(WideStagedEnv), *lengths(2)], "Wide")
    with pytest.raises(UserError, match="at least two"):
        staged_source(lengths(2), "One")


def test_settings_that_stages_would_lose_are_rejected():
    frames = ('{"frame_skip": 2}', '{"frame_skip": 4}')
    with pytest.raises(UserError, match="stage 0 of ALE/Pong-v5 differs from the last one: action_repeat is 2, not 4"):
        EnvConfig("ALE/Pong-v5", suite="atari", stages=frames).source()
    team = sorted(TEAM_PROBES)[0]
    with pytest.raises(
        UserError, match=f"stage 0 of {team} differs from the last one: team_reward is 'sum', not 'own'"
    ):
        EnvConfig(team, suite="probe", stages=('{"team_reward": "sum"}', "{}")).source()
    first, last = [
        dataclasses.replace(source, stage=stage) for source, stage in zip(lengths(2, 3), (None, 1), strict=True)
    ]
    assert staged_source([first, last], "Steps").spec().stage == 1, "the stage of resets is the last source's own"


def test_ids_and_arguments_name_stages():
    env = EnvConfig("CartPole-v1", stages=('{"max_episode_steps": 3}', '{"max_episode_steps": 5}'))
    assert env.stage == 0
    made = env.source().make_env()
    assert [episode_length(made, options={"stage": stage}) for stage in (0, 1)] == [3, 5]
    ids = EnvConfig(stages=("MiniGrid-DoorKey-5x5-v0", "MiniGrid-DoorKey-6x6-v0"))
    assert ids.id == "MiniGrid-DoorKey-6x6-v0", "the last stage names the run"
    grid = ids.source().make_env()
    sizes = []
    for stage in (0, 1):
        grid.reset(seed=0, options={"stage": stage})
        sizes.append(grid._current.unwrapped.width)
    assert sizes == [5, 6]
    with pytest.raises(UserError, match=r"env.stages: expected a JSON object, got '\{3'"):
        EnvConfig("CartPole-v1", stages=("{3", "{}"))


def test_team_sizes_of_hide_and_seek_as_stages():
    teams = ('{"hiders": 1, "seekers": 1, "rooms": 1}', '{"hiders": 2, "seekers": 1, "rooms": 2}')
    source = EnvConfig("randomwalls", suite="hide_and_seek", kwargs='{"max_agents": 3}', stages=teams).source()
    assert [agent.name for agent in source.spec().agents] == ["hider_0", "hider_1", "seeker_0"]
    env = source.make_env()
    present = []
    for stage in (0, 1):
        env.reset(seed=1, options={"stage": stage})
        env.step({name: env.action_space(name).sample() for name in env.agents})
        present.append(list(env.agents))
    env.close()
    assert present == [["hider_0", "seeker_0"], ["hider_0", "hider_1", "seeker_0"]]
    with pytest.raises(UserError, match="its agent hider_1 has no place in the last stage"):
        EnvConfig("base", suite="hide_and_seek", kwargs='{"max_agents": 3}', stages=teams_of(2, 1)).source()


def teams_of(*hiders):
    return tuple(f'{{"hiders": {number}, "seekers": 1}}' for number in hiders)


def test_a_source_at_a_stage():
    source = staged_source(lengths(2, 3), "Steps")
    assert at_stage(source, None) is source
    assert at_stage(source, 1).spec().stage == 1
    mixed = at_stage(mixed_source({"a": source, "b": source}), 1)
    assert mixed.spec().stage == 1
    assert {each.stage for each in mixed.sources} == {1}
    with pytest.raises(UserError, match="stepped together receive no stage"):
        at_stage(EnvConfig("CartPole-v1", suite="gymnasium_vector").source(), 1)


def test_rendering_shows_the_stage():
    env = EnvConfig("CartPole-v1", stages=("{}", '{"max_episode_steps": 5}')).source().make_env(render_mode="rgb_array")
    env.reset(seed=0, options={"stage": 0})
    assert env.render().ndim == 3
    assert isinstance(env.unwrapped, gymnasium.Env)
    env.close()
