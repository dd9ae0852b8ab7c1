"""Every suite that can draw: an untrained agent's first steps, as a file that can be played. Needs the suites' packages."""

import os
import re
import subprocess

import jax
import numpy as np
import pytest

from agents.api import Mode
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.envs.registry import make_env
from jaxsrl.evaluation.video import Video

pytestmark = pytest.mark.slow
get_ffmpeg_exe = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe
NETWORK = NetworkConfig(hidden_sizes=(8,))
# Packages, environment, network, frames per second, [height, width] of a frame.
SUITES = {
    "gymnasium": (["pygame"], EnvConfig("Acrobot-v1", kwargs='{"max_episode_steps": 25}'), NETWORK, 15.0, (500, 500)),
    "mujoco": (["mujoco"], EnvConfig("HalfCheetah-v5", kwargs='{"max_episode_steps": 25}'), NETWORK, 20.0, (480, 480)),
    "atari": (
        ["ale_py", "cv2"],
        EnvConfig("ALE/Breakout-v5", "atari", '{"terminal_on_life_loss": true, "clip_rewards": true}'),
        NETWORK,
        15.0,
        (210, 160),
    ),
    "minigrid": (
        ["minigrid"],
        EnvConfig("MiniGrid-Empty-5x5-v0", "minigrid", '{"max_steps": 25}'),
        NETWORK,
        10.0,
        (160, 160),
    ),
    "vizdoom": (["vizdoom", "cv2"], EnvConfig("VizdoomBasic-v1", "vizdoom"), NETWORK, 8.75, (120, 160)),
}


def read(path):
    """Frames per second as ffmpeg says, and the frames, [N, H, W, 3]."""
    to_numbers = ["-fps_mode", "passthrough", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run([get_ffmpeg_exe(), "-i", path, *to_numbers], capture_output=True, check=True, timeout=60)
    found = re.search(r"Video: h264 .*?, (\d+)x(\d+)[ ,].*?([\d.]+) fps", done.stderr.decode())
    assert found is not None
    return float(found[3]), np.frombuffer(done.stdout, np.uint8).reshape(-1, int(found[2]), int(found[1]), 3)


def recorded(path, source, network, episodes=1):
    video = Video(source, path, episodes)
    agent = make_ppo(PPOConfig(), source.spec(), network)
    return video.record(agent, agent.init(jax.random.key(0)).params, mode=Mode.SAMPLE)


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_is_drawn_in_color_at_its_own_speed(tmp_path, suite):
    packages, config, network, frames_per_second, size = SUITES[suite]
    for package in packages:
        pytest.importorskip(package)
    report = recorded(tmp_path / "out.mp4", make_env(config), network)
    speed, frames = read(tmp_path / "out.mp4")
    assert speed == frames_per_second
    assert frames.shape == (1 + report.lengths[0], *size, 3)
    assert len({frame.tobytes() for frame in frames}) > len(frames) // 4
    assert np.ptp(frames.astype(int), axis=-1).max() > 60  # colors, and not shades of grey


def test_atari_shows_whole_games_and_their_score(tmp_path):
    for package in SUITES["atari"][0]:
        pytest.importorskip(package)
    report = recorded(tmp_path / "out.mp4", make_env(SUITES["atari"][1]), SUITES["atari"][2])
    _, frames = read(tmp_path / "out.mp4")
    # The digit that counts the lives goes from 5 to 1.
    lives = {(frame[5:15, 100:112].mean(-1) > 70).tobytes() for frame in frames}
    assert len(lives) >= 5
    assert report.lengths[0] > 100


def test_agents_of_a_pettingzoo_environment_are_drawn(tmp_path):
    pytest.importorskip("mpe2")
    source = make_env(EnvConfig("simple_spread_v3", "mpe", '{"max_cycles": 10}'))
    report = recorded(tmp_path / "out.mp4", source, NETWORK, episodes=2)
    speed, frames = read(tmp_path / "out.mp4")
    assert (report.lengths, speed) == ((10, 10), 10.0)
    assert frames.shape == (11 + 5 + 11, 700, 700, 3)
    assert len(report.agent_returns) == 3


def test_a_game_in_turns_is_drawn(tmp_path):
    pytest.importorskip("pettingzoo.classic")
    source = make_env(EnvConfig("pettingzoo/classic/connect_four_v3", "pettingzoo"))
    report = recorded(tmp_path / "out.mp4", source, NETWORK)
    _, frames = read(tmp_path / "out.mp4")
    assert len(frames) == 1 + report.lengths[0]
    assert len({frame.tobytes() for frame in frames}) == len(frames)  # every move puts a piece


def test_the_last_screen_of_a_vizdoom_episode_is_not_black(tmp_path):
    pytest.importorskip("vizdoom")
    recorded(tmp_path / "out.mp4", make_env(SUITES["vizdoom"][1]), NETWORK)
    _, frames = read(tmp_path / "out.mp4")
    assert frames[-1].mean() > 20


def test_mujoco_without_the_library_that_draws_is_one_clear_line(tmp_path, monkeypatch):
    pytest.importorskip("mujoco")
    source = make_env(SUITES["mujoco"][1])
    source.spec()
    monkeypatch.setitem(os.environ, "MUJOCO_GL", "absent")
    expected = (
        r"HalfCheetah-v5 cannot be rendered on this machine: .*MUJOCO_GL=absent: install its library \(Debian: libegl1"
    )
    with pytest.raises(UserError, match=expected) as refused:
        Video(source, tmp_path / "out.mp4")
    assert "\n" not in str(refused.value)
