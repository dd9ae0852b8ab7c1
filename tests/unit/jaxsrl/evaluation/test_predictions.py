"""Open-loop predictions of an evaluation: what is seen, errors, and the files that show them."""

import re
import subprocess

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from agents.api import Agent, Mode, OnPolicy, Replay, ReplayAgent, ReplayConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from jaxsrl.evaluation.evaluate import evaluate
from jaxsrl.evaluation.predictions.draw import image_frames, record_predictions
from jaxsrl.evaluation.predictions.open_loop import (
    CONTEXT,
    HORIZON,
    MOST_STEPS,
    OpenLoop,
    can_predict,
    predict_open_loop,
    seen_observations,
)


class Ramp(gymnasium.Env):
    """Observes the step of the episode twice as numbers; episodes have `length` steps."""

    length = 80

    def __init__(self):
        self.observation_space = spaces.Box(0.0, 1e6, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(2, self.t, np.float32), 0.0, self.t == self.length, False, {}


class Endless(Ramp):
    length = 10_000


def agent():
    """Predicts that each number grows by its `extra` a step from the last one that was seen; counts its steps from 7 on."""

    def act(params, observation, agent_state, is_first, keys, mode):
        return jnp.zeros(len(is_first), jnp.int32), {}, agent_state + 1

    def predict(params, extra, window, seen, key):
        steps = jnp.arange(len(seen))[:, None]
        last = jax.lax.cummax(jnp.where(seen, steps, -1))
        real = window.observation.reshape((*seen.shape, -1))
        grown = real[last, jnp.arange(seen.shape[1])] + extra * (steps - last)[..., None]
        state = jnp.broadcast_to(window.agent_state[:, None], (*seen.shape, 1))
        return {"numbers": (real, grown), "state": (state, state)}

    return ReplayAgent(
        "ramp", None, lambda rows: jnp.full((rows,), 7.0), act, None, {}, Replay(ReplayConfig(), 1), predict
    )


def test_agents_say_whether_they_predict():
    plain = Agent("plain", None, None, None, None, {}, OnPolicy())
    assert can_predict(agent())
    assert not can_predict(agent()._replace(predict_observations=None))
    assert not can_predict(plain)


def test_context_starts_anew_in_each_period_and_episode():
    is_first = np.zeros((130, 2), bool)
    is_first[0] = is_first[70, 1] = True
    seen = seen_observations(is_first)
    period = CONTEXT + HORIZON
    expected = {*range(CONTEXT), *range(period, period + CONTEXT), *range(2 * period, 2 * period + CONTEXT)}
    assert set(np.flatnonzero(seen[:, 0])) == expected
    # 70 + CONTEXT + HORIZON lies in the window, too.
    later = {70 + t for t in (*range(CONTEXT), *range(period, period + CONTEXT))}
    assert set(np.flatnonzero(seen[:, 1])) == {*range(CONTEXT), *range(period, period + CONTEXT)} | later


def test_whole_episodes_are_predicted_from_their_start():
    open_loop = predict_open_loop(agent(), (), 1.0, Ramp, episodes=2)
    real, predicted = open_loop.leaves["numbers"]
    assert real[:, 0].tolist() == [*range(81), *range(81)]
    assert np.flatnonzero(open_loop.is_first).tolist() == [0, 81]
    np.testing.assert_array_equal(predicted, real)
    assert (open_loop.leaves["state"][0] == 7.0).all()  # the agent's state before the first step
    assert open_loop.errors()["numbers"] == 0.0


def test_playing_ends_after_the_longest_window():
    open_loop = predict_open_loop(agent(), (), 1.0, Endless)
    assert len(open_loop.seen) == MOST_STEPS + 1


def test_stacked_frames_reach_the_prediction():
    open_loop = predict_open_loop(agent(), (), 1.0, GymnasiumSource(Ramp, "ramp", frame_stack=3))
    real, _ = open_loop.leaves["numbers"]
    assert real.shape == (81, 6)
    assert real[10].tolist() == [8, 8, 9, 9, 10, 10]
    assert real[1].tolist() == [0, 0, 0, 0, 1, 1]


def test_errors_are_those_of_unseen_observations():
    seen = np.array([True, False, True, False, False])
    real = np.array([[0.0], [1.0], [5.0], [6.0], [9.0]])
    predicted = np.array([[50.0], [3.0], [50.0], [6.0], [8.0]])
    open_loop = OpenLoop("test", {"x": (real, predicted)}, seen, np.arange(5) == 0)
    assert open_loop.errors() == {"x": pytest.approx(np.sqrt((4 + 0 + 1) / 3))}
    assert open_loop.errors_if_unchanged() == {"x": pytest.approx(np.sqrt((1 + 1 + 16) / 3))}
    everything = OpenLoop("test", {"x": (real, predicted)}, np.ones(5, bool), np.arange(5) == 0)
    assert everything.errors() == everything.errors_if_unchanged() == {}


def test_frames_show_real_predicted_and_difference():
    real, predicted = np.zeros((2, 64, 64, 1)), np.zeros((2, 64, 64, 1))
    real[1], predicted[1] = 1.0, 0.5
    open_loop = OpenLoop("test", {"image": (real, predicted)}, np.array([True, False]), np.array([True, False]))
    first, second = image_frames(open_loop)
    assert first.shape == (8 + 192, 3 * 192, 3)
    assert first[0, 0].tolist() != second[0, 0].tolist(), "the bar says what was seen"
    assert [second[100, x, 0] for x in (50, 250, 450)] == [255, 128, 64]
    assert [first[100, x, 0] for x in (50, 250, 450)] == [0, 0, 128]


def test_files_show_images_and_numbers(tmp_path):
    get_ffmpeg_exe = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe
    random = np.random.default_rng(0)
    image, numbers = random.random((6, 20, 30, 3)), random.random((6, 30))
    leaves = {"camera": (image, image), "joints": (numbers, numbers)}
    open_loop = OpenLoop("test", leaves, np.arange(6) % 3 == 0, np.arange(6) % 4 == 0)
    result = record_predictions(open_loop, tmp_path / "run.mp4")
    video, picture = tmp_path / "run_predicted.mp4", tmp_path / "run_predicted.png"
    assert result["files"] == [str(video), str(picture)]
    assert result["open_loop_error"] == {"camera": 0.0, "joints": 0.0}
    assert result["open_loop_error_if_unchanged"]["joints"] > 0.1
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown = subprocess.run([get_ffmpeg_exe(), "-i", video], capture_output=True, check=False, timeout=60).stderr
    assert re.search(rb"h264.* 900x208[ ,]", shown)  # three images of 30 pixels, ten times as large, and the bar


def test_the_evaluated_episode_is_predicted():
    report = evaluate(agent(), 1.0, Ramp, episodes=1, max_rows=1, mode=Mode.SAMPLE)
    open_loop = predict_open_loop(agent(), (), 1.0, Ramp, mode=Mode.SAMPLE)
    assert len(open_loop.seen) == report.lengths[0] + 1
