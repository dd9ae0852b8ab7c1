"""A disk that is full while a run saves: training goes on with the checkpoints that there are, and says so."""

import errno
import json

import pytest

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.checkpoints.store import CheckpointSaveError, CheckpointStore
from jaxsrl.envs.registry import make_env
from jaxsrl.machine.resources import Resources
from jaxsrl.models.store import MODELS, ModelStore
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import run
from tests.support.run_configs import run_config


def train(directory, **changes):
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
    source = make_env(EnvConfig("CartPole-v1"))
    spec = source.spec()
    agent = make_ppo(PPOConfig(num_epochs=1, num_minibatches=1), spec, NetworkConfig(hidden_sizes=(8,)))
    return run(PLANS["serial"](config, Resources.detect()), agent, source, config, spec=spec, quiet=True)


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


def test_failed_final_save_fails_the_run(tmp_path, full_at):
    full_at(6)
    with pytest.raises(CheckpointSaveError, match="the newest is that of update 4"):
        train(tmp_path)
