"""Models that are kept for good, also by a run that was killed between its checkpoint and keeping the model."""

import dataclasses
import shutil

import pytest

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.experiment import Experiment
from jaxsrl.models.store import MODELS, ModelStore
from tests.support.run_configs import run_config

STEPS = 4 * 8
SMALL = Experiment(
    EnvConfig("CartPole-v1"), PPOConfig(num_minibatches=1, num_epochs=1), NetworkConfig(hidden_sizes=(4,))
)


def train(directory, updates):
    settings = {
        "plan": "serial",
        "eval_final_episodes": 0,
        "metrics_tensorboard": False,
        "checkpoint_keep_every": STEPS,
    }
    sizes = {"num_envs": 4, "rollout_length": 8, "total_env_steps": updates * STEPS}
    config = run_config(name="run", directory=str(directory), **sizes, **settings)
    return dataclasses.replace(SMALL, run=config).train(quiet=True)


@pytest.mark.slow
def test_a_resumed_run_keeps_the_model_of_its_checkpoint(tmp_path):
    train(tmp_path, updates=1)
    store = ModelStore(tmp_path / "run" / MODELS)
    assert store.tags() == {"step-32": 1}
    for updates in (1, 2):
        shutil.rmtree(store.directory)  # as if the process had been killed right after its checkpoint
        train(tmp_path, updates)
        assert store.tags() == {f"step-{update * STEPS}": update for update in range(1, updates + 1)}
    assert train(tmp_path, updates=2).seconds == 0.0
