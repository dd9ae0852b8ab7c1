"""ALE's own threads play the games of suite "atari", frame for frame."""

import json
from functools import partial

import numpy as np
import pytest

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.protocol import EpisodeReset, FirstRows, GymnasiumReset, StepRows
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import zeros_of
from tests.support.suite_envs import make_atari

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

ONE_THREAD = {"num_threads": 1, "frame_stack": 1}


def vector(env_id, **options):
    return EnvConfig(env_id, suite="atari_vector", kwargs=json.dumps({**ONE_THREAD, **options})).source()


def played(source, num_rows, num_steps, reset=None):
    """[N] of (observation, reward, terminated, truncated, valid), after a reset."""
    spec = source.spec()
    rows = source.make_rows(range(num_rows), 3, False)
    flags = [np.zeros(num_rows, bool) for _ in range(4)]
    out = StepRows(zeros_of(spec.observation, (num_rows,)), flags[0], np.zeros(num_rows, np.float32), *flags[1:])
    rows.reset(reset or GymnasiumReset(tuple(range(num_rows))), FirstRows(out.observation, out.is_first))
    steps = [[out.observation.copy()]]
    rng = np.random.default_rng(0)
    for _ in range(num_steps):
        out.prepare()
        rows.step(rng.integers(0, spec.action.num_values, num_rows).astype(np.int32), out)
        steps.append([x.copy() for x in (out.observation, out.reward, out.terminated, out.truncated, out.valid)])
    rows.close()
    return steps


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("ALE/Breakout-v5", {}),  # FIRE begins a game: it must not be pressed for the agent
        ("ALE/Breakout-v5", {"max_frames": 80}),
        (
            "ALE/SpaceInvaders-v5",
            {"frame_skip": 3, "screen_size": 42, "clip_rewards": True},
        ),  # flickers: the maximum over two frames shows
        ("ALE/Pong-v5", {"full_action_space": True, "grayscale": False}),
    ],
)
def test_its_frames_rewards_and_ends_are_those_of_suite_atari(env_id, options):
    options = {"noop_max": 0, **options}  # no-ops are drawn otherwise
    one_by_one = GymnasiumSource(partial(make_atari, env_id, {**options, "frame_stack": 1}))
    ours, theirs = played(vector(env_id, **options), 2, 60), played(one_by_one, 2, 60)
    if "max_frames" in options:
        assert sum(step[3].sum() for step in theirs[1:]) == 4  # two rows, twice each
    if "clip_rewards" in options:
        assert {float(reward) for step in theirs[1:] for reward in step[1]} == {0.0, 1.0}
    for ours_at, theirs_at in zip(ours, theirs, strict=True):
        for one, other in zip(ours_at, theirs_at, strict=True):
            np.testing.assert_array_equal(one, other)


def test_its_spec_is_that_of_suite_atari():
    vector_spec = EnvConfig("ALE/Pong-v5", suite="atari_vector", kwargs='{"frame_skip": 2}').source().spec()
    spec = EnvConfig("ALE/Pong-v5", suite="atari", kwargs='{"frame_skip": 2}').source().spec()
    assert vector_spec == spec
    assert (spec.observation.shape, spec.observation.stored_shape) == ((4, 84, 84), (84, 84))
    assert vector_spec.action_repeat == 2


def no_ops(source, episodes):
    """Emulator frames that each row played before its first observation."""
    rows = source.make_rows(range(len(episodes)), 3, True)
    out = FirstRows(np.zeros((len(episodes), 84, 84), np.uint8), np.zeros(len(episodes), bool))
    rows.reset(EpisodeReset(episodes, (None,) * len(episodes)), out)
    rows.close()
    return [info["frame_number"] for info in rows.infos]


@pytest.mark.slow
def test_every_row_draws_its_own_no_ops_from_its_seed_alone():
    source = vector("ALE/Pong-v5")
    drawn = [no_ops(source, (episode, 0, 1)) for episode in range(3)]
    assert len({first for first, *_ in drawn}) > 1
    assert {tuple(others) for _, *others in drawn} == {tuple(drawn[0][1:])}
    assert all(0 <= count <= 30 for count in drawn[0])
    assert no_ops(source, (2, 0, 1)) == drawn[2]


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        ("ALE/Pong-v5", {"terminal_on_life_loss": True}, "start a new game after each.*use suite 'atari'"),
        ("ALE/Pong-v5", {"mode": 1}, "cannot choose mode or difficulty"),
        ("ALE/Pong-v5", {"stack_num": 4}, "unknown option 'stack_num'"),
        ("ALE/Pong-v5", {"num_threads": -1}, "num_threads must be at least 0"),
        ("CartPole-v1", {}, "atari_vector"),
    ],
)
def test_native_ale_rejects_unsupported_options(env_id, options, message):
    with pytest.raises(UserError, match=message):
        EnvConfig(env_id, suite="atari_vector", kwargs=json.dumps(options)).source()


def test_evaluation_counts_the_score():
    source = vector("ALE/Pong-v5", clip_rewards=True)
    assert source.for_evaluation().make_vector_env.args[1].clip_rewards is False
    assert source.make_vector_env.args[1].clip_rewards is True
