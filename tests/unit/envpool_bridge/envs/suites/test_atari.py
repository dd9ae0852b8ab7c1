"""Atari: the field's preprocessing, each option of it, and episodes that are lives."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.suites.atari_wrappers import EpisodeIsALife, StickyActions
from envpool_bridge.errors import UserError
from tests.support.suite_envs import make_atari

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

NOOP, FIRE = 0, 1


class Scripted(gymnasium.Env):
    """A game whose steps are given as (lives left, terminated, truncated); it observes how many steps it has made."""

    observation_space = spaces.Discrete(100)
    action_space = spaces.Discrete(3)

    def __init__(self, *script):
        self.script, self.step_number, self.resets, self.actions = script, 0, [], []

    def reset(self, *, seed=None, options=None):
        self.step_number = 0
        self.actions = []
        self.resets.append(seed)
        return 0, {"lives": 3}

    def step(self, action):
        lives, terminated, truncated = self.script[self.step_number]
        self.step_number += 1
        self.actions.append(action)
        return self.step_number, 1.0, terminated, truncated, {"lives": lives}


def played(env, action=2):
    observation, _, terminated, truncated, _ = env.step(action)
    return observation, terminated, truncated


def emulator(env):
    return env.unwrapped.ale


@pytest.mark.parametrize(
    ("kwargs", "shape"),
    [
        ({}, (4, 84, 84)),
        ({"frame_stack": 1}, (84, 84)),
        ({"frame_stack": 2, "screen_size": 42}, (2, 42, 42)),
        ({"frame_stack": 1, "grayscale": False}, (84, 84, 3)),
    ],
)
def test_options_shape_the_observation(kwargs, shape):
    env = make_atari("ALE/Pong-v5", kwargs)
    observation, _ = env.reset(seed=0)
    assert env.observation_space == spaces.Box(0, 255, shape, "uint8")
    assert observation.shape == shape
    env.close()


@pytest.mark.parametrize("frame_skip", [1, 2, 5])
def test_a_step_is_as_many_frames_as_asked_for_and_declared(frame_skip):
    kwargs = {"frame_skip": frame_skip}
    env = make_atari("ALE/Pong-v5", kwargs)
    env.reset(seed=0)
    before = emulator(env).getFrameNumber()
    for _ in range(3):
        env.step(NOOP)
    assert emulator(env).getFrameNumber() - before == 3 * frame_skip
    env.close()
    source = EnvConfig("ALE/Pong-v5", "atari", json.dumps(kwargs)).source()
    assert source.spec().action_repeat == frame_skip


def test_atari_episode_starts_with_random_noops():
    env = make_atari("ALE/Pong-v5", {"noop_max": 3})
    frames = set()
    for seed in range(12):
        env.reset(seed=seed)
        frames.add(emulator(env).getEpisodeFrameNumber())
    env.close()
    none = make_atari("ALE/Pong-v5", {"noop_max": 0})
    none.reset(seed=0)
    start = emulator(none).getEpisodeFrameNumber()
    none.close()
    assert {frame - start for frame in frames} == {1, 2, 3}


@pytest.mark.parametrize(
    "game", ["ALE/Qbert-v5", "ALE/BeamRider-v5"]
)  # two whose emulators keep what was played before
def test_atari_episode_is_determined_by_its_seed(game):
    def episode(env, seed):
        first, _ = env.reset(seed=seed)
        steps = [env.step(step % 4) for step in range(20)]
        return [first.tobytes()] + [(step[0].tobytes(), step[1]) for step in steps]

    kwargs = {"repeat_action_probability": 0.25, "frame_stack": 1, "noop_max": 1}
    fresh, played_before = make_atari(game, kwargs), make_atari(game, kwargs)
    expected = episode(fresh, 5)
    episode(played_before, 1)
    assert episode(played_before, 5) == expected
    assert episode(fresh, 5) == expected
    fresh.close()
    played_before.close()


def test_a_games_first_frame_is_the_emulators_own():
    import gymnasium.wrappers

    kwargs = {"noop_max": 1, "frame_stack": 1}
    env, theirs = (
        make_atari("ALE/Seaquest-v5", kwargs),
        gymnasium.make("ALE/Seaquest-v5", frameskip=1, repeat_action_probability=0.0, disable_env_checker=True),
    )
    theirs = gymnasium.wrappers.AtariPreprocessing(theirs, noop_max=1)
    for _ in range(2):
        np.testing.assert_array_equal(env.reset(seed=8)[0], theirs.reset(seed=0)[0])
        for step in range(30):
            np.testing.assert_array_equal(env.step(step % 18)[0], theirs.step(step % 18)[0])
    env.close()
    theirs.close()


class Recorder(gymnasium.Env):
    """Records the actions it is given."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(100_000)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.actions = []
        return 0, {}

    def step(self, action):
        self.actions.append(action)
        return 0, 0.0, False, False, {}


def test_a_sticky_action_is_the_one_that_was_played_before():
    recorder = Recorder()
    env = StickyActions(recorder, 0.25)
    env.reset(seed=0)
    count = 4000
    for action in range(1, count + 1):
        env.step(action)
    repeats = 0
    for given, before, done in zip(range(1, count + 1), [NOOP, *recorder.actions], recorder.actions, strict=False):
        assert done in (given, before)
        repeats += done == before
    assert repeats / count == pytest.approx(0.25, abs=0.03)
    for seed in range(40):  # one in four of which repeats what there was before the first
        env.reset(seed=seed)
        env.step(7)
        assert recorder.actions[0] in (NOOP, 7)
        env.step(8)
        env.step(8)


def test_actions_stick_and_are_all_eighteen_only_when_asked():
    plain = make_atari("ALE/Pong-v5", {})
    asked = make_atari("ALE/Pong-v5", {"repeat_action_probability": 0.25, "full_action_space": True})
    assert (is_sticky(plain), plain.action_space.n) == (False, 6)
    assert (is_sticky(asked), asked.action_space.n) == (True, 18)
    assert emulator(asked).getFloat("repeat_action_probability") == 0.0  # not twice
    plain.close()
    asked.close()


def is_sticky(env):
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, StickyActions):
            return True
        env = env.env
    return False


def test_atari_rejects_games_without_a_noop():
    with pytest.raises(UserError, match="has no no-op .* set full_action_space true"):
        make_atari("ALE/Backgammon-v5", {})
    make_atari("ALE/Backgammon-v5", {"full_action_space": True}).close()


def test_atari_truncates_after_max_frames():
    env = make_atari("ALE/Pong-v5", {"max_frames": 200})
    for seed in (0, 1):
        env.reset(seed=seed)
        ends = []
        while not (ends and any(ends[-1])):
            ends.append(env.step(NOOP)[2:4])
        assert ends[-1] == (False, True)
        assert emulator(env).getEpisodeFrameNumber() == pytest.approx(200, abs=4)
        assert len(ends) > 35
    env.close()


@pytest.mark.parametrize(
    ("kwargs", "problem"),
    [
        ({"noops": 3}, "unknown option 'noops'; did you mean noop_max?"),
        ({"frame_skip": 0}, "option frame_skip must be at least 1"),
        ({"noop_max": -1}, "option noop_max must be at least 0"),
        ({"repeat_action_probability": 1.5}, r"repeat_action_probability must lie in \[0, 1\], got 1.5"),
        ({"grayscale": False}, "frame_stack 4 stacks grey frames"),
    ],
)
def test_atari_rejects_invalid_options_early(kwargs, problem):
    with pytest.raises(UserError, match=problem):
        EnvConfig("ALE/Pong-v5", "atari", json.dumps(kwargs)).source()


def test_lost_life_ends_the_episode_and_the_game_continues():
    game = Scripted((3, False, False), (2, False, False), (2, False, False), (1, False, False), (1, False, False))
    env = EpisodeIsALife(game)
    assert env.reset(seed=7)[0] == 0
    assert played(env) == (1, False, False)
    assert played(env) == (2, True, False)
    assert env.reset(seed=8)[0] == 3
    assert played(env) == (4, True, False)
    assert env.reset()[0] == 5
    assert game.resets == [7]
    assert game.actions == [2, 2, NOOP, 2, NOOP]


def test_last_life_ends_with_the_game_and_a_new_one_starts():
    game = Scripted((1, False, False), (0, False, False), (0, True, False), (0, True, False))
    env = EpisodeIsALife(game)
    env.reset(seed=1)
    assert played(env) == (1, True, False)
    env.reset(seed=2)  # its no-op is the script's second step: no lives are left, yet the game is not over
    assert played(env) == (3, True, False)
    assert env.reset(seed=3)[0] == 0
    assert game.resets == [1, 3]


def test_frames_without_lives_belong_to_the_last_life():
    game = Scripted((1, False, False), (1, False, False), (0, False, False), (0, True, False))
    env = EpisodeIsALife(game)
    env.reset(seed=1)
    assert played(env) == (1, True, False)
    assert env.reset(seed=2)[0] == 2
    assert played(env) == (3, False, False)
    assert played(env) == (4, True, False)
    assert env.reset(seed=3)[0] == 0


def test_life_lost_at_the_end_starts_a_new_game():
    for terminated, truncated in ((True, False), (False, True)):
        game = Scripted((2, terminated, truncated))
        env = EpisodeIsALife(game)
        env.reset()
        assert played(env) == (1, True, truncated)
        assert env.reset(seed=9)[0] == 0
        assert game.resets == [None, 9]


def test_noop_that_ends_the_game_starts_a_new_one():
    env = EpisodeIsALife(game := Scripted((2, False, False), (0, True, False)))
    env.reset(seed=1)
    assert played(env) == (1, True, False)
    assert env.reset(seed=2)[0] == 0
    assert game.resets == [1, 2]


def test_reset_within_a_life_starts_a_new_game():
    env = EpisodeIsALife(game := Scripted((3, False, False), (3, False, False)))
    env.reset(seed=1)
    played(env)
    assert env.reset(seed=2)[0] == 0
    assert game.resets == [1, 2]


def test_lives_of_a_real_game_are_joined_by_noops():
    kwargs = {"frame_stack": 1}
    game, lives = (
        make_atari("ALE/Breakout-v5", kwargs),
        make_atari("ALE/Breakout-v5", {**kwargs, "terminal_on_life_loss": True}),
    )
    np.testing.assert_array_equal(game.reset(seed=3)[0], lives.reset(seed=3)[0])
    over, left, ended, step = False, 5, 0, 0
    while not over:
        action = FIRE if step % 3 == 0 else 2
        expected, reward, over, _, info = game.step(action)
        observation, got, terminated, _, _ = lives.step(action)
        np.testing.assert_array_equal(observation, expected)
        assert got == reward
        assert terminated == (over or info["lives"] < left)
        ended += terminated
        if terminated and not over:
            np.testing.assert_array_equal(lives.reset(seed=100 + ended)[0], game.step(NOOP)[0])
        left = info["lives"]
        step += 1
    assert ended == 5
    game.close()
    lives.close()


@pytest.mark.parametrize("frames", [1, 3])
def test_agents_see_stacked_frames_of_which_one_is_stored(frames):
    source = EnvConfig("ALE/Pong-v5", "atari", json.dumps({"frame_stack": frames})).source()
    seen = source.spec().observation
    assert (seen.frames, seen.stored_shape) == (frames, (84, 84))
    assert source.for_evaluation().spec().observation == seen


def test_evaluation_plays_whole_games_and_counts_the_score():
    kwargs = {"terminal_on_life_loss": True, "clip_rewards": True, "frame_skip": 3}
    source = EnvConfig("ALE/Breakout-v5", "atari", json.dumps(kwargs)).source()
    evaluated = source.for_evaluation()
    assert evaluated.spec() == source.spec()
    assert evaluated.for_evaluation() == evaluated
    env = evaluated.make_env()
    _, info = env.reset(seed=0)
    terminated = False
    while not terminated:
        _, _, terminated, _, info = env.step(FIRE)
    assert info["lives"] == 0
    env.close()


def test_evaluated_games_keep_the_last_step_in_observations():
    kwargs = json.dumps({"clip_rewards": True})
    source = EnvConfig("ALE/MsPacman-v5", "atari", kwargs, last_action=True, last_reward=True).source()
    evaluated = source.for_evaluation()
    assert evaluated.spec() == source.spec()
    env = evaluated.make_env(render_mode="rgb_array")
    env.reset(seed=1)
    steps = [env.step(3) for _ in range(120)]
    assert max(step[1] for step in steps) >= 10.0
    assert all(step[0]["last_reward"] == step[1] and step[0]["last_action"] == 3 for step in steps)
    assert env.render().shape == (210, 160, 3)
    env.close()


def test_rewards_are_clipped_to_their_sign_only_when_asked():
    games = [make_atari("ALE/MsPacman-v5", {"clip_rewards": clip}) for clip in (False, True)]
    for game in games:
        game.reset(seed=1)
    rewards = np.array([[game.step(3)[1] for game in games] for _ in range(120)])
    assert rewards[:, 0].max() >= 10.0
    np.testing.assert_array_equal(rewards[:, 1], np.sign(rewards[:, 0]))
    for game in games:
        game.close()
