"""MiniGrid: symbols as integers, words as numbers, and missions only where they say something."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from tests.support.suite_envs import make_minigrid

pytest.importorskip("minigrid")

DOOR_KEY = "MiniGrid-DoorKey-5x5-v0"


def refusal(env_id, **kwargs):
    with pytest.raises(UserError) as refused:
        EnvConfig(env_id, "minigrid", json.dumps(kwargs)).source().spec()
    return str(refused.value)


def num_words(env):
    return env.observation_space["mission"].shape[0] if "mission" in env.observation_space.spaces else 0


def test_the_image_is_minigrids_own_symbols():
    env, theirs = make_minigrid(DOOR_KEY, {}), gymnasium.make(DOOR_KEY, disable_env_checker=True)
    observation, _ = env.reset(seed=5)
    expected, _ = theirs.reset(seed=5)
    assert isinstance(env.observation_space["image"], spaces.MultiDiscrete)
    assert env.observation_space["image"].nvec[3, 3].tolist() == [11, 6, 4]
    for action in (2, 0, 2, 1, 3):
        np.testing.assert_array_equal(observation["image"], expected["image"])
        assert observation["direction"] == expected["direction"]
        assert env.observation_space.contains(observation)
        observation, expected = env.step(action)[0], theirs.step(action)[0]
    env.close()
    theirs.close()


@pytest.mark.parametrize(
    ("kwargs", "shape", "kind"),
    [
        ({}, (7, 7, 3), spaces.MultiDiscrete),
        ({"view": "full"}, (5, 5, 3), spaces.MultiDiscrete),
        ({"image": "pixels"}, (56, 56, 3), spaces.Box),
        ({"image": "pixels", "view": "full"}, (40, 40, 3), spaces.Box),
    ],
)
def test_options_choose_the_view(kwargs, shape, kind):
    env = make_minigrid(DOOR_KEY, kwargs)
    for seed in range(8):
        observation, _ = env.reset(seed=seed)
        assert env.observation_space.contains(observation)
    assert observation["image"].shape == shape
    assert type(env.observation_space["image"]) is kind
    env.close()


@pytest.mark.parametrize(
    ("env_id", "kwargs", "expected"),
    [
        (DOOR_KEY, {}, 0),
        ("MiniGrid-GoToDoor-5x5-v0", {}, 5),
        ("MiniGrid-LockedRoom-v0", {}, 18),
        ("MiniGrid-Fetch-5x5-N2-v0", {}, 6),
        ("BabyAI-GoToLocal-v0", {}, 72),
        ("BabyAI-GoToLocal-v0", {"mission_words": 5}, 5),
        ("BabyAI-GoToLocal-v0", {"mission_words": 0}, 0),
        (DOOR_KEY, {"mission_words": 13}, 13),
    ],
)
def test_a_mission_is_read_where_it_differs_between_episodes(env_id, kwargs, expected):
    env = make_minigrid(env_id, kwargs)
    assert num_words(env) == expected
    env.close()


@pytest.mark.parametrize("env_id", ["MiniGrid-PutNear-6x6-N2-v0", "BabyAI-OpenDoorLoc-v0", "BabyAI-GoToSeqS5R2-v0"])
def test_minigrid_encodes_missions_uniquely(env_id):
    env = make_minigrid(env_id, {})
    seen = {}
    for seed in range(10):
        numbers = env.reset(seed=seed)[0]["mission"]
        mission = env.unwrapped.mission
        length = len(mission.replace(",", " ,").split())
        assert (numbers[:length] > 0).all()
        assert (numbers[length:] == 0).all()
        assert env.observation_space["mission"].contains(numbers)
        assert seen.setdefault(mission, tuple(numbers)) == tuple(numbers)
    assert len(set(seen.values())) == len(seen) > 1
    env.close()


def test_a_step_reads_the_same_mission_as_the_reset():
    env = make_minigrid("MiniGrid-GoToDoor-5x5-v0", {})
    first = env.reset(seed=0)[0]["mission"]
    np.testing.assert_array_equal(env.step(0)[0]["mission"], first)
    env.close()


def test_minigrid_rejects_a_mission_that_is_too_long():
    env = make_minigrid("MiniGrid-GoToDoor-5x5-v0", {"mission_words": 4})
    with pytest.raises(UserError, match="the mission 'go to the .* door' has 5 words: set mission_words"):
        env.reset(seed=0)
    env.close()


def test_an_episode_is_as_long_as_asked_for():
    env = make_minigrid(DOOR_KEY, {"max_steps": 3})
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    env.close()


def test_suite_rejects_unknown_ids_and_options():
    assert "did you mean MiniGrid-DoorKey-5x5-v0" in refusal("MiniGrid-DoorKey-5x5-v1")
    assert "unknown environment id 'CartPole-v1' of suite 'minigrid'" in refusal("CartPole-v1")
    assert "unknown option 'views'; did you mean view?" in refusal(DOOR_KEY, views="full")
    assert "option view must be one of 'partial', 'full', got 'half'" in refusal(DOOR_KEY, view="half")
    assert "its suite is 'minigrid': --env.suite minigrid" in refusal_of_gymnasium("MiniGrid-Nothing-v0")


def refusal_of_gymnasium(env_id):
    with pytest.raises(UserError) as refused:
        EnvConfig(env_id, "gymnasium").source()
    return str(refused.value)


def test_minigrid_rejects_a_task_without_its_package():
    try:
        import imageio  # noqa: F401
        import networkx  # noqa: F401
    except ImportError:
        assert "WFC" in refusal("MiniGrid-WFC-MazeSimple-v0")
    else:
        pytest.skip("the package is here")
