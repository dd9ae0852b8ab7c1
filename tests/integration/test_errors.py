"""What cannot be done is refused in one clear line with exit status 2, before any process starts."""

import dataclasses
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import gymnasium
import pytest
from gymnasium import spaces

import jaxsrl.cli.main
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.probes.single_agent import ConstantReward
from envpool_bridge.errors import UnsupportedSpaceError
from envpool_bridge.supervisor import forkserver
from experiments import ppo_cartpole
from jaxsrl import run_plan as run_module
from jaxsrl.checkpoints.run_directory import RunDirectory
from jaxsrl.config.changes import with_options
from jaxsrl.machine.cpu_latency import disable_cpu_idle
from jaxsrl.machine.lifecycle import exit_on_user_error
from tests.support.run_configs import change_run

ROOT = Path(__file__).parents[2]


class Nested(ConstantReward):
    def __init__(self):
        super().__init__()
        camera = spaces.Dict({"rgb": spaces.Text(5), "depth": spaces.Box(0, 1, (2,))})
        self.observation_space = spaces.Dict({"camera": camera})


def refusal(capsys, monkeypatch, *changes, experiment=None):
    """What the experiment prints when it is refused; fails if a process was started."""

    def no_process(self):
        raise AssertionError("a process was started")

    monkeypatch.setattr(forkserver.ForkServer, "__init__", no_process)
    experiment = experiment or ppo_cartpole.EXPERIMENT
    for part, settings in changes:
        experiment = with_options(experiment, {f"{part}.{name}": settings[name] for name in settings})
    with pytest.raises(SystemExit) as stopped:
        exit_on_user_error(experiment.train)()
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    return printed


def test_missing_cpu_idle_permission_is_reported_before_start(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(run_module, "disable_cpu_idle", partial(disable_cpu_idle, tmp_path / "latency"))
    settings = {"machine.disable_cpu_idle": True, "directory": str(tmp_path / "runs")}
    assert "remove machine.disable_cpu_idle" in refusal(capsys, monkeypatch, ("run", settings))
    assert not (tmp_path / "runs").exists()


def test_unknown_environment_gets_suggestions(capsys, monkeypatch):
    printed = refusal(capsys, monkeypatch, ("env", {"id": "CartPol-v1"}))
    assert "unknown environment id 'CartPol-v1'" in printed
    assert "CartPole-v1" in printed
    assert printed.count("\n") == 1


def test_unsupported_space_is_rejected_by_path():
    with pytest.raises(UnsupportedSpaceError, match=r"observation\['camera'\]\['"):
        GymnasiumSource(Nested).spec()


def test_too_many_devices_are_rejected(capsys, monkeypatch, tmp_path):
    printed = refusal(capsys, monkeypatch, ("run", {"learner.num_devices": 64, "directory": str(tmp_path)}))
    assert "fragment learner wants device 63, but there are 4 cpu devices" in printed


def test_indivisible_rows_are_rejected_with_a_valid_number(capsys, monkeypatch, tmp_path):
    printed = refusal(capsys, monkeypatch, ("run", {"num_envs": 130, "directory": str(tmp_path)}))
    assert "130 rows do not divide over 2 workers x 2 lanes: use --run.num-envs 128" in printed


def test_indivisible_minibatches_are_rejected(capsys, monkeypatch, tmp_path):
    printed = refusal(capsys, monkeypatch, ("agent", {"num_minibatches": 5}), ("run", {"directory": str(tmp_path)}))
    assert "num_minibatches must divide rollout_length: got 5 and 32" in printed


def test_run_directory_in_use_is_rejected_by_holder(capsys, monkeypatch, tmp_path):
    import os

    with RunDirectory(tmp_path / "busy"):
        printed = refusal(capsys, monkeypatch, ("run", {"name": "busy", "directory": str(tmp_path)}))
    assert f"is in use by process {os.getpid()}" in printed


def test_changed_configuration_is_rejected_with_difference(capsys, monkeypatch, tmp_path):
    with RunDirectory(tmp_path / "run") as directory:
        from jaxsrl.config.serialization import to_json

        experiment = ppo_cartpole.EXPERIMENT
        saved = dataclasses.replace(
            experiment, run=dataclasses.replace(experiment.run, name="run", directory=str(tmp_path))
        )
        directory.record({"agent_name": "ppo", "experiment": to_json(saved), "env_spec": {}}, {})
    printed = refusal(
        capsys, monkeypatch, ("agent", {"discount": 0.9}), ("run", {"name": "run", "directory": str(tmp_path)})
    )
    assert "agent.discount: 0.98 -> 0.9" in printed


def test_invalid_checkpoint_path_is_rejected(capsys, tmp_path):
    with pytest.raises(SystemExit) as stopped:
        jaxsrl.cli.main.main(["evaluate", str(tmp_path)])
    assert stopped.value.code == 2
    assert "is no checkpoint" in capsys.readouterr().err


def test_an_unknown_flag_ends_with_status_2():
    command = [sys.executable, str(ROOT / "experiments" / "ppo_cartpole.py"), "--run.nonsense", "3"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2


@pytest.mark.slow
def test_evaluate_prints_one_json_object_for_a_run(capsys, tmp_path):
    experiment = ppo_cartpole.EXPERIMENT
    run = change_run(experiment.run, name="run", directory=str(tmp_path), total_env_steps=8192, eval_final_episodes=0)
    dataclasses.replace(experiment, run=run).train()
    capsys.readouterr()
    jaxsrl.cli.main.main(["evaluate", str(tmp_path / "run"), "--episodes", "5", "--json"])
    first = json.loads(capsys.readouterr().out)
    assert first["episodes"] == 5
    assert first["env_steps"] == first["mean_length"] * 5
    assert {"mean_return", "std_return"} <= set(first)
    checkpoint = tmp_path / "run" / "checkpoints" / "2"
    jaxsrl.cli.main.main(["evaluate", str(checkpoint), "--episodes", "5", "--json"])
    assert json.loads(capsys.readouterr().out)["mean_return"] == first["mean_return"]


def test_environment_in_unusual_form_is_accepted():
    assert EnvConfig("CartPole-v1").source().spec() == GymnasiumSource(partial(gymnasium.make, "CartPole-v1")).spec()
