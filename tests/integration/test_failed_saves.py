"""Faults that end no run (full disks, locks, measurements), and errors that do after everything was saved."""

import errno
import fcntl
import json
import os
import re
import shutil
import signal
from pathlib import Path

import gymnasium
import numpy as np
import psutil
import pytest

import jaxsrl
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.store import CheckpointSaveError, CheckpointStore
from jaxsrl.envs.registry import make_env
from jaxsrl.machine.process_usage import ProcessTree
from jaxsrl.machine.resources import Resources
from jaxsrl.models import index
from jaxsrl.models.store import MODELS, ModelStore
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import run
from jaxsrl.training import train as training
from tests.support.run_configs import run_config


def train(directory, env=None, callbacks=(), hidden=8, **changes):
    config = run_config(
        name="run",
        directory=str(directory),
        plan="serial",
        num_envs=4,
        rollout_length=4,
        total_env_steps=4 * 4 * 6,
        checkpoint_interval_updates=2,
        **changes,
    )
    source = make_env(env or EnvConfig("CartPole-v1"))
    spec = source.spec()
    agent = make_ppo(PPOConfig(num_epochs=1, num_minibatches=1), spec, NetworkConfig(hidden_sizes=(hidden,)))
    return run(
        PLANS["serial"](config, Resources.detect()), agent, source, config, spec=spec, quiet=True, callbacks=callbacks
    )


def test_the_disk_that_checkpoints_take_is_in_the_log(tmp_path):
    train(tmp_path, hidden=20_000)
    line = next(line for line in (tmp_path / "run" / "log.txt").read_text().splitlines() if "checkpoints take" in line)
    stated = float(re.search(r"up to ([\d.]+) MiB of disk", line)[1]) * 2**20
    used = sum(file.stat().st_size for file in (tmp_path / "run" / "checkpoints").rglob("*") if file.is_file())
    assert used < stated < 4 * used


def test_checkpoints_that_do_not_fit_are_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10_000, 9_000, 1_000))
    train(tmp_path)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert re.search(r"warning: checkpoints take .* are free: use a --run.directory on another disk", log)


@pytest.fixture
def full_at(monkeypatch):
    """Makes the disk full when the checkpoint of one of these updates has been half written."""
    save = CheckpointStore._save

    def at(*updates):
        def full(store, step, arrays, metadata):
            if step in updates:
                (store.directory / f".{step}.tmp").mkdir(parents=True)
                raise OSError(errno.ENOSPC, "No space left on device")
            return save(store, step, arrays, metadata)

        monkeypatch.setattr(CheckpointStore, "_save", full)

    return at


def test_failed_save_keeps_training_and_older_checkpoints(tmp_path, full_at):
    full_at(4)
    report = train(tmp_path)
    assert report.num_updates == 6
    assert CheckpointStore(report.directory / "checkpoints").steps() == [2, 6]
    assert "update 4 could not be written" in (report.directory / "log.txt").read_text()
    last = json.loads((report.directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["checkpoint/failed_saves_total"], last["checkpoint/update"]) == (1.0, 6.0)


def test_a_kept_model_that_cannot_be_written_ends_no_run(tmp_path, full_at):
    full_at(3)
    report = train(tmp_path, checkpoint_keep_every=4 * 4 * 3)
    assert report.num_updates == 6
    assert ModelStore(report.directory / MODELS).tags() == {"step-96": 6}
    assert "the model of update 3 was not saved" in (report.directory / "log.txt").read_text()


def test_a_full_disk_at_the_end_is_waited_for(tmp_path, full_at, monkeypatch):
    full_at(6)
    monkeypatch.setattr(training, "_DISK_SECONDS", 0.01)
    waited = []

    def make_room(loop):
        waited.append(loop)
        full_at()

    monkeypatch.setattr(training.TrainingLoop, "forgive_wait", make_room)
    report = train(tmp_path)
    assert waited
    assert CheckpointStore(report.directory / "checkpoints").steps()[-1] == 6
    assert "waits for room on the disk" in (report.directory / "log.txt").read_text()


def test_a_signal_ends_the_wait_for_room(tmp_path, full_at, monkeypatch):
    full_at(6)
    monkeypatch.setattr(training.TrainingLoop, "forgive_wait", lambda loop: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(CheckpointSaveError, match="the newest is that of update 4"):
        train(tmp_path)


class Fails(gymnasium.Env):
    """Fails at a step of the first environment, or changes the working directory there."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    at, elsewhere = 0, ""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        Fails.at -= 1
        if Fails.at == 0 and self.elsewhere:
            os.chdir(self.elsewhere)
        elif Fails.at == 0:
            raise RuntimeError("a rare failure")
        return np.zeros(3, np.float32), 1.0, False, False, {}


def test_an_error_of_an_environment_is_logged_after_a_save(tmp_path, monkeypatch):
    monkeypatch.setattr(Fails, "at", 4 * 4 * 3 + 9)  # in the trajectory of update 4, between two checkpoints
    with pytest.raises(Exception, match="a rare failure"):
        train(tmp_path, Fails)
    assert CheckpointStore(tmp_path / "run" / "checkpoints").steps() == [2, 3]
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "ends by an error after update 3" in log
    assert "a rare failure" in log
    assert train(tmp_path, Fails).num_updates == 6


def test_a_run_survives_a_change_of_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(Fails, "at", 4 * 4 * 3)
    monkeypatch.setattr(Fails, "elsewhere", str(tmp_path / "elsewhere"))
    report = train(Path("runs"), Fails)
    assert not list((tmp_path / "elsewhere").iterdir())
    assert report.directory.is_relative_to(tmp_path / "here")
    assert CheckpointStore(report.directory / "checkpoints").steps() == [2, 4, 6]


def test_a_removed_run_directory_is_one_error(tmp_path):
    class Removes(jaxsrl.Callback):
        def on_update(self, run):
            if run.num_updates == 3:
                run.directory.rename(tmp_path / "renamed")

    with pytest.raises(UserError, match="was removed or renamed while the run trains"):
        train(tmp_path / "runs", callbacks=[Removes()])
    assert not list((tmp_path / "runs").rglob("checkpoints"))


def test_no_lock_and_no_measurement_ends_a_run(tmp_path, monkeypatch, capsys):
    def fails(*arguments):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", fails)
    monkeypatch.setattr(psutil, "virtual_memory", fails)
    monkeypatch.setattr(ProcessTree, "update", lambda tree: True)
    report = train(tmp_path, checkpoint_keep_every=4 * 4 * 3, metrics_interval_seconds=0.0)
    assert report.num_updates == 6
    assert len(ModelStore(report.directory / MODELS).tags()) == 2
    assert "the file system cannot lock" in capsys.readouterr().err


def test_a_held_lock_of_models_ends_no_run(tmp_path, monkeypatch):
    monkeypatch.setattr(index, "_LOCK_SECONDS", 0.05)

    class Holds(jaxsrl.Callback):
        def on_start(self, run):
            (run.directory / MODELS).mkdir()
            self.file = open(run.directory / MODELS / index.LOCK, "a")  # noqa: SIM115  a lock of its own
            fcntl.flock(self.file, fcntl.LOCK_EX)

        def close(self):
            self.file.close()

    report = train(tmp_path, callbacks=[Holds()], checkpoint_keep_every=4 * 4 * 3)
    assert report.num_updates == 6
    assert "another process holds the lock of the models" in (report.directory / "log.txt").read_text()
