"""Videos show the episodes that are evaluated, every frame of them, or are refused before anything is played."""

import importlib.util
import os
import re
import subprocess
import sys

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from agents.api import Agent, Mode, OnPolicy
from envpool_bridge.envs.action_repeat import with_action_repeat
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.errors import BadEnvOutputError, UserError
from jaxsrl.evaluation.evaluate import evaluate
from jaxsrl.evaluation.video import Video

get_ffmpeg_exe = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe

_DRAWING = ("MUJOCO_GL", "SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY")


class Lamp(gymnasium.Env):
    """An episode of `2 + seed % 4` steps; the frame is grey, 10 brighter at every step, its last column white."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012
    size = (31, 45)

    def __init__(self, render_mode=None):
        self.observation_space = spaces.Box(0.0, 9.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        self.t, self.length = 0, 2 + seed % 4
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.array([self.t], np.float32), float(1 + action), self.t == self.length, False, {}

    def render(self):
        assert self.render_mode == "rgb_array"
        frame = np.full((*self.size, 3), 40 + 10 * self.t, np.uint8)
        frame[:, -1] = 255
        return frame


class Grows(Lamp):
    """Its second frame is larger than the first."""

    def render(self):
        return np.zeros((16 + 2 * self.t, 16, 3), np.uint8)


class Grey(Lamp):
    def render(self):
        return np.zeros((16, 16), np.uint8)


class Blind(Lamp):
    metadata = {"render_modes": ["human"]}  # noqa: RUF012


class Broken(Lamp):
    def render(self):
        raise OSError("libGL.so.1:\n cannot open shared object file")


class Undeclared(Lamp):
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012


class Pair:
    """Two agents under one lamp, as PettingZoo's parallel environments are; episodes of three steps."""

    metadata = Lamp.metadata
    possible_agents = ("left", "right")

    def __init__(self, render_mode=None):
        self.possible_agents, self.agents = list(Pair.possible_agents), []
        self.lamp = Lamp(render_mode)

    def observation_space(self, agent):
        return self.lamp.observation_space

    def action_space(self, agent):
        return self.lamp.action_space

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        observation, info = self.lamp.reset(seed=1)
        return dict.fromkeys(self.agents, observation), dict.fromkeys(self.agents, info)

    def step(self, actions):
        result = self.lamp.step(sum(actions.values()))
        acted, self.agents = self.agents, [] if result[2] else self.agents
        return tuple(dict.fromkeys(acted, part) for part in result)

    def render(self):
        return self.lamp.render()

    def close(self):
        pass


def agent():
    """Acts by the number of the step if greedy, by its key if sampled."""

    def act(params, observation, agent_state, is_first, keys, mode):
        action = observation[:, 0].astype(jnp.int32) % 2
        if mode is not Mode.GREEDY:
            action = jax.vmap(lambda key: jax.random.randint(key, (), 0, 2))(keys)
        return action, {}, agent_state

    return Agent("by_step", None, lambda num_rows: (), act, None, {}, OnPolicy())


def read(path):
    """What ffmpeg says of the file (codec, frames per second), and its frames, [N, H, W, 3]."""
    done = subprocess.run(
        [get_ffmpeg_exe(), "-i", path, "-fps_mode", "passthrough", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"],
        capture_output=True,
        check=True,
        timeout=150,
    )
    found = re.search(r"Video: (\w+) .*?, (\d+)x(\d+)[ ,].*?([\d.]+) fps", done.stderr.decode())
    assert found is not None
    width, height = int(found[2]), int(found[3])
    frames = np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)
    return {"codec": found[1], "fps": float(found[4])}, frames


def recorded(tmp_path, make_env, episodes=1, **options):
    path = tmp_path / "out.mp4"
    report = Video(make_env, path, episodes).record(agent(), {}, **options)
    assert [found.name for found in tmp_path.iterdir()] == ["out.mp4"]
    return report, *read(path)


def test_video_has_every_frame_and_pauses(tmp_path):
    report, meta, frames = recorded(tmp_path, Lamp, episodes=3, seed=2)
    assert (meta["fps"], meta["codec"]) == (8.0, "h264")
    expected = []
    for number, length in enumerate(report.lengths):
        if number:
            expected += [expected[-1]] * 4  # half a second
        expected += [40 + 10 * t for t in range(length + 1)]
    assert len(set(report.lengths)) > 1
    np.testing.assert_allclose(frames[:, 15, 20].mean(-1), expected, atol=3)


def test_odd_sizes_are_made_even_by_repeating_the_edge(tmp_path):
    _, _, frames = recorded(tmp_path, Lamp)
    assert frames.shape[1:] == (32, 46, 3)
    assert frames[:, :, -2:].min() > 200  # the white column, twice
    assert frames[0, -1, 20].mean() == pytest.approx(40, abs=3)


@pytest.mark.parametrize("mode", [Mode.GREEDY, Mode.SAMPLE])
def test_the_episodes_are_those_that_evaluation_plays_in_one_row(tmp_path, mode):
    report, _, _ = recorded(tmp_path, Lamp, episodes=4, seed=3, mode=mode)
    assert report == evaluate(agent(), {}, Lamp, episodes=4, seed=3, mode=mode, max_rows=1)
    assert report != evaluate(agent(), {}, Lamp, episodes=4, seed=4, mode=mode, max_rows=1)


@pytest.mark.parametrize(("make_env", "repeat", "expected"), [(Lamp, 4, 2.0), (Undeclared, 1, 30.0)])
def test_the_speed_is_what_the_environment_declares_for_a_step(tmp_path, make_env, repeat, expected):
    _, meta, _ = recorded(tmp_path, GymnasiumSource(make_env, action_repeat=repeat))
    assert meta["fps"] == expected


def test_agents_of_one_environment_are_seen_together(tmp_path):
    report, _, frames = recorded(tmp_path, ParallelSource(Pair), episodes=2)
    assert report.lengths == (3, 3)
    assert len(frames) == 4 + 4 + 4
    assert set(report.agent_returns) == {"left", "right"}


class Cut(GymnasiumSource):
    """What only training plays cannot draw here; whole games can."""

    def for_evaluation(self):
        return GymnasiumSource(Lamp, "whole")


def test_whole_games_are_shown_where_training_cuts_them(tmp_path):
    report, _, _ = recorded(tmp_path, Cut(Blind, "cut"))
    assert report.env_id == "whole"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            EnvConfig("MatchObservation", "probe").source(),
            "MatchObservation cannot be rendered: .* a make_env that does not",
        ),
        (
            EnvConfig("CartPole-v1", "gymnasium_vector").source(),
            "those of suites gymnasium, atari,.* got a VectorSource",
        ),
        (
            with_action_repeat(GymnasiumSource(lambda: Lamp("rgb_array"), "Repeated"), 2),
            "Repeated cannot be rendered: expected .* one inside that does not: .* argument 'render_mode'",
        ),
        (GymnasiumSource(Blind, "Blind"), r"Blind cannot be rendered: expected 'rgb_array' .* got \['human'\]"),
        (
            GymnasiumSource(Grey, "Grey"),
            r"Grey: expected render\(\) to return \[height, width, 3\] uint8, got .*\(16, 16\)",
        ),
        (
            GymnasiumSource(Broken, "Broken"),
            "Broken cannot be rendered on this machine: OSError: libGL.so.1: cannot open shared object file",
        ),
    ],
)
def test_what_cannot_draw_is_refused_before_anything_is_played(tmp_path, source, message):
    with pytest.raises(UserError, match=message) as refused:
        Video(source, tmp_path / "out.mp4")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["out.avi", "nowhere/out.mp4", "taken.mp4"])
def test_a_path_that_no_video_can_have_is_refused(tmp_path, name):
    (tmp_path / "taken.mp4").mkdir()
    with pytest.raises(UserError, match=r"expected the video to be a file \*.mp4 in an existing directory"):
        Video(Lamp, tmp_path / name)


def test_fewer_episodes_than_one_are_refused(tmp_path):
    with pytest.raises(UserError, match="video_episodes must be at least 1: got 0"):
        Video(Lamp, tmp_path / "out.mp4", 0)


def test_mujoco_that_cannot_be_imported_names_its_libraries(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "mujoco"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("MUJOCO_GL", "egl")

    def make_env(render_mode=None):
        monkeypatch.setitem(sys.modules, "mujoco._structs", None)  # left by an import that failed
        raise AttributeError("'NoneType' object has no attribute 'glGetError'")

    expected = r"glGetError'. MuJoCo renders with MUJOCO_GL=egl: install its library \(Debian: libegl1 and libopengl0"
    with pytest.raises(UserError, match=expected):
        Video(GymnasiumSource(make_env), tmp_path / "out.mp4")


def test_video_names_the_missing_package_and_command(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "imageio_ffmpeg" else found(name))
    with pytest.raises(UserError, match=r"pip install 'jaxsrl\[video\]'"):
        Video(Lamp, tmp_path / "out.mp4")


def test_a_video_that_fails_leaves_the_one_before(tmp_path):
    path = tmp_path / "out.mp4"
    path.write_bytes(b"before")
    with pytest.raises(BadEnvOutputError, match=r"frames of one size .* \(18, 16, 3\) after \(16, 16, 3\)"):
        Video(Grows, path).record(agent(), {})
    assert [found.name for found in tmp_path.iterdir()] == ["out.mp4"]
    assert path.read_bytes() == b"before"


def test_what_ffmpeg_says_is_passed_on(tmp_path):
    directory = tmp_path / "away"
    directory.mkdir()
    video = Video(Lamp, directory / "out.mp4")
    directory.rmdir()
    with pytest.raises(UserError, match=r"ffmpeg could not write the video \(status \d+\): .*No such file"):
        video.record(agent(), {})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("egl", "dummy")),
        ({"MUJOCO_GL": "osmesa"}, ("osmesa", "dummy")),
        ({"DISPLAY": ":0"}, (None, None)),
    ],
)
def test_without_a_display_drawing_goes_into_memory(tmp_path, monkeypatch, given, expected):
    environ = {**{name: value for name, value in os.environ.items() if name not in _DRAWING}, **given}
    monkeypatch.setattr(os, "environ", environ)
    Video(Lamp, tmp_path / "out.mp4")
    assert (environ.get("MUJOCO_GL"), environ.get("SDL_VIDEODRIVER")) == expected
