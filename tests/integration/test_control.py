"""A run that `jaxsrl control` pauses, saves, changes, resumes and stops."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import jaxsrl
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.store import CheckpointStore, load_checkpoint
from jaxsrl.cli.main import main
from jaxsrl.envs.registry import make_env
from jaxsrl.runs.control import control_state
from tests.shared_names import names_left
from tests.support.run_configs import run_config

ROOT = Path(__file__).parents[2]
SECONDS = 300.0
COMMAND = [sys.executable, "-m", "jaxsrl.cli.main"]
FLAGS = ["--run.name", "run", "--run.total-env-steps", "100000000", "--run.num-envs", "8", "--run.rollout-length", "8"]
FLAGS += ["--agent.num-minibatches", "1", "--checkpoint.interval-updates", "0", "--eval.final-episodes", "0"]


@pytest.fixture
def start(tmp_path):
    """Starts the run, and again after its end; kills what is left."""
    started = []

    def start_run(*flags):
        command = [*COMMAND, "train", str(ROOT / "experiments" / "ppo_cartpole.py"), *FLAGS]
        command += ["--run.directory", str(tmp_path), *flags]
        with open(tmp_path / f"output_{len(started)}.txt", "w") as output:
            started.append(subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT))
        return started[-1]

    yield start_run
    for process in started:
        process.kill()
        process.wait(SECONDS)


@pytest.fixture
def control(tmp_path, capsys):
    """Runs `jaxsrl control` on the run, and returns the JSON object that it prints."""

    def send(*words):
        capsys.readouterr()
        main(["control", str(tmp_path / "run"), *words, "--json", "--timeout-seconds", str(SECONDS)])
        return json.loads(capsys.readouterr().out)

    return send


def wait_until_trains(directory, process):
    end = time.monotonic() + SECONDS
    while control_state(directory / "run") is None:
        assert process.poll() is None, [path.read_text() for path in directory.glob("output_*.txt")]
        assert time.monotonic() < end
        time.sleep(0.1)


def test_run_is_paused_saved_resumed_and_stopped(start, control, tmp_path):
    process = start()
    wait_until_trains(tmp_path, process)
    assert control()["state"] == "training"
    paused = control("pause")
    assert paused["state"] == "paused"
    assert control()["update"] == paused["update"]
    assert control("save")["update"] == paused["update"]
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    assert store.steps() == [paused["update"]]
    assert control("pause")["update"] == paused["update"]
    assert control("resume")["state"] == "training"
    while (now := control())["update"] == paused["update"]:
        pass
    assert now["state"] == "training"
    stopped = control("stop")
    assert process.wait(SECONDS) == 0
    assert stopped["update"] in store.steps()
    assert "stopped: requested by control" in (tmp_path / "run" / "log.txt").read_text()
    assert not names_left()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_paused_run_ends_by_signals_and_resumes_unpaused(start, control, tmp_path, name):
    process = start()
    wait_until_trains(tmp_path, process)
    control("pause")
    saved = control("save")["update"]
    process.send_signal(signal.Signals[name])
    process.wait(SECONDS)
    with pytest.raises(SystemExit) as ended:
        control()
    assert ended.value.code == 2
    process = start()
    wait_until_trains(tmp_path, process)
    while (now := control())["update"] <= saved:
        assert process.poll() is None
    assert now["state"] == "training"
    control("stop")
    assert process.wait(SECONDS) == 0


class Slower(jaxsrl.Callback):
    """Changes learning rate and entropy bonus after update 2, and stops after another update."""

    def __init__(self, stop_at=0):
        self.stop_at, self.seen = stop_at, []

    def on_update(self, run):
        self.seen.append((run.values["learning_rate_factor"], run.values["entropy_coef_factor"]))
        if run.num_updates == 2:
            run.set_value("learning_rate_factor", 0.5)
            run.set_value("entropy_coef_factor", 4.0)
        if run.num_updates == self.stop_at:
            run.stop("far enough")


def train_slower(directory, callbacks, **changes):
    settings = {
        "name": "run",
        "directory": str(directory),
        "num_envs": 4,
        "rollout_length": 4,
        "total_env_steps": 5 * 16,
    }
    settings |= {"pool_num_workers": 1, "eval_final_episodes": 0, "checkpoint_interval_updates": 0, "max_policy_lag": 0}
    source = make_env(EnvConfig("CartPole-v1", suite="jax"))
    agent = make_ppo(PPOConfig(num_minibatches=1), source.spec(), NetworkConfig(hidden_sizes=(4,)))
    config = run_config(**{**settings, **changes})
    return jaxsrl.train(agent, source, config, quiet=True, callbacks=callbacks)


def learned(directory):
    checkpoints = directory / "run" / "checkpoints"
    arrays, _ = load_checkpoint(checkpoints / str(CheckpointStore(checkpoints).steps()[-1]))
    return {name: value for name, value in arrays.items() if name.startswith("learner")}


@pytest.mark.parametrize("plan", ["serial", pytest.param("device_only", marks=pytest.mark.slow)])
def test_changed_values_survive_a_resume_to_the_bit(tmp_path, plan):
    changes = {"plan": plan} | ({"checkpoint_interval_updates": 1} if plan == "device_only" else {})
    slower = Slower()
    train_slower(tmp_path / "whole", [slower], **changes)
    assert slower.seen == [(1.0, 1.0), (1.0, 1.0), (0.5, 4.0), (0.5, 4.0), (0.5, 4.0)]
    train_slower(tmp_path / "cut", [Slower(stop_at=3)], **changes)
    resumed = Slower()
    train_slower(tmp_path / "cut", [resumed], **changes)
    assert resumed.seen == [(0.5, 4.0), (0.5, 4.0)]
    train_slower(tmp_path / "same", [], **changes)
    whole, cut, same = (learned(tmp_path / name) for name in ("whole", "cut", "same"))
    for name, value in whole.items():
        np.testing.assert_array_equal(value, cut[name], err_msg=name)
    assert any((whole[name] != same[name]).any() for name in whole if "params" in name)


class Wrong(jaxsrl.Callback):
    """Tries values that a run rejects."""

    def on_update(self, run):
        for name, value, error in [
            ("learning_rate", 1.0, "'learning_rate': this run can change entropy_coef_factor, learning_rate_factor"),
            ("entropy_coef_factor", -0.1, "must not be negative"),
            ("learning_rate_factor", -1.0, "must not be negative"),
            ("learning_rate_factor", float("nan"), "must be finite"),
            ("env.stage", 1.0, "unknown value"),
        ]:
            with pytest.raises(UserError, match=error):
                run.set_value(name, value)


def test_wrong_values_are_rejected(tmp_path):
    train_slower(tmp_path, [Wrong()], plan="serial", total_env_steps=16)
