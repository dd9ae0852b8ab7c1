"""Crafter: episodes that follow from their seeds, deaths and time limits, achievements as numbers."""

import json

import numpy as np
import pytest

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.rendering import rendering
from envpool_bridge.errors import UserError

crafter = pytest.importorskip("crafter")


def make_crafter(env_id="CrafterReward-v1", **kwargs):
    return EnvConfig(env_id, kwargs=json.dumps(kwargs)).source().make_env()


def played(env, seed, num_steps=5):
    steps, rng = [(env.reset(seed=seed)[0], 0.0)], np.random.default_rng(3)
    for _ in range(num_steps):
        observation, reward, *_ = env.step(rng.integers(env.action_space.n))
        steps.append((observation, reward))
    return [np.stack(values) for values in zip(*steps, strict=True)]


def test_an_episode_follows_from_its_seed():
    env, other = make_crafter(), make_crafter()
    images, rewards = played(env, 4)
    played(env, 5)
    for again in (played(env, 4), played(other, 4)):
        np.testing.assert_array_equal(again[0], images)
        np.testing.assert_array_equal(again[1], rewards)
    assert (env.reset(seed=5)[0] != images[0]).any()
    assert env.observation_space.contains(images[0])
    assert env.action_space.n == 17


def test_steps_are_those_of_the_package():
    env = make_crafter()
    images, rewards = played(env, 4)
    env.reset(seed=4)
    theirs, rng = crafter.Env(seed=env._env._seed), np.random.default_rng(3)
    np.testing.assert_array_equal(theirs.reset(), images[0])
    for image, reward in zip(images[1:], rewards[1:], strict=True):
        observation, expected, *_ = theirs.step(rng.integers(17))
        np.testing.assert_array_equal(observation, image)
        assert reward == expected


def test_only_a_death_terminates():
    env = make_crafter(max_steps=3)
    env.reset(seed=1)
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    env.reset(seed=1)
    env._env._player.health = 0
    assert env.step(0)[2:4] == (True, False)


def test_achievements_are_numbers_without_rewards_too():
    env = make_crafter("CrafterNoReward-v1")
    env.reset(seed=1)
    env._env._player.achievements["collect_wood"] = 2
    _, reward, _, _, info = env.step(0)
    assert (reward, info["achievements"], info["collect_wood"], info["wake_up"]) == (0.0, 1.0, 1.0, 0.0)
    assert len(info) == 23


def test_videos_show_larger_images_of_the_same_map():
    source, frames_per_second = rendering(
        EnvConfig("CrafterReward-v1", kwargs=json.dumps({"screen_size": 576})).source()
    )
    env = source.make_env()
    observation, _ = env.reset(seed=1)
    assert (env.render_mode, frames_per_second) == ("rgb_array", 10.0)
    frame = env.render()
    assert (frame.shape, frame.dtype) == ((576, 576, 3), np.uint8)
    np.testing.assert_array_equal(frame, observation)


def test_a_rendered_night_goes_on_as_one_that_is_not():
    envs = make_crafter(), make_crafter()
    for env in envs:
        env.reset(seed=1)
        env._env._step = 250
        env.step(0)
    envs[0].render()
    for _ in range(3):
        np.testing.assert_array_equal(*(env.step(0)[0] for env in envs))


def test_unknown_ids_and_options_are_rejected():
    with pytest.raises(UserError, match="unknown id 'CrafterX' of suite 'crafter': expected one of CrafterReward-v1"):
        EnvConfig("CrafterX").source()
    with pytest.raises(UserError, match="screen_size must be at least 9"):
        make_crafter(screen_size=3)
