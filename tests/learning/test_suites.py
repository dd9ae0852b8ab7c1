"""Every suite of one agent trains for 20,000 env steps, is saved, evaluated and drawn. Minutes; make test-all."""

import dataclasses
import json

import numpy as np
import pytest

import jaxsrl.cli.main
from envpool_bridge.envs.config import EnvConfig
from experiments import ppo_atari, ppo_minigrid, ppo_mujoco, ppo_vizdoom
from tests.support.run_configs import change_run

LIVES = {"terminal_on_life_loss": True, "clip_rewards": True, "repeat_action_probability": 0.25, "screen_size": 42}
SMALL = {"grayscale": True, "frame_stack": 4, "screen_size": [42, 60]}
SUITES = {
    "atari": (ppo_atari, None, ("ale_py", "cv2")),
    "atari lives": (ppo_atari, EnvConfig("ALE/Breakout-v5", "atari", json.dumps(LIVES)), ("ale_py", "cv2")),
    "mujoco": (ppo_mujoco, None, ("mujoco",)),
    "minigrid": (ppo_minigrid, None, ("minigrid",)),
    "minigrid mission": (ppo_minigrid, EnvConfig("MiniGrid-GoToDoor-5x5-v0", "minigrid"), ("minigrid",)),
    "vizdoom": (ppo_vizdoom, None, ("vizdoom", "cv2")),
    "vizdoom stacked": (
        ppo_vizdoom,
        EnvConfig("VizdoomHealthGathering-v1", "vizdoom", json.dumps(SMALL)),
        ("vizdoom", "cv2"),
    ),
}


def trained(module, env, directory):
    experiment = module.EXPERIMENT
    run = change_run(
        experiment.run, directory=str(directory), name="run", total_env_steps=20_000, eval_final_episodes=0
    )
    dataclasses.replace(experiment, env=env or experiment.env, run=run).train()
    return directory / "run"


def evaluated(capsys, run, *arguments):
    capsys.readouterr()
    jaxsrl.cli.main.main(["evaluate", str(run), "--episodes", "2", "--json", *arguments])
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES)
def test_suite_trains_evaluates_and_plots(tmp_path, capsys, name):
    module, env, packages = SUITES[name]
    for package in packages:
        pytest.importorskip(package)
    run = trained(module, env, tmp_path)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [record[key] for record in records for key in record if key.startswith("loss/")]
    assert losses
    assert np.isfinite(losses).all()
    video = tmp_path / "episode.mp4"
    report = evaluated(capsys, run, "--max-rows", "1", "--video", str(video))
    assert report["episodes"] == 2
    assert np.isfinite(report["mean_return"])
    assert video.stat().st_size > 1000


@pytest.mark.slow
def test_the_key_and_the_door_are_learned_within_300_000_steps(tmp_path):
    pytest.importorskip("minigrid")
    experiment = ppo_minigrid.EXPERIMENT
    run = change_run(experiment.run, directory=str(tmp_path), name="run", total_env_steps=300_000)
    dataclasses.replace(experiment, run=run).train()
    assert json.loads((tmp_path / "run" / "eval.json").read_text())["mean_return"] > 0.9
