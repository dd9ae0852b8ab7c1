"""Recording of the replay buffer of a run that trains: agent, update and steps are of one checkpoint."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

import jaxsrl.evaluation.load_agent
from agents.api import ReplayConfig
from agents.dqn import DQNConfig, make_dqn
from agents.networks.config import NetworkConfig
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from experiments.dqn_cartpole import EXPERIMENT
from jaxsrl.cli.commands.record import Record
from jaxsrl.collect.slot_layout import trajectory_shapes
from jaxsrl.config.serialization import to_json
from jaxsrl.datasets.dataset import open_dataset
from jaxsrl.datasets.writer import DatasetWriter
from jaxsrl.evaluation.load_agent import load_agent
from jaxsrl.evaluation.record_replay import record_replay
from jaxsrl.models.store import ModelStore
from jaxsrl.replay.client import buffer_shapes
from jaxsrl.training.run_state import buffer_to_arrays, state_to_arrays

LENGTH = 8


def save(run, update):
    """Saves a checkpoint whose replay buffer has the steps of all updates, which are zeros."""
    env, network = EnvConfig("CartPole-v1"), NetworkConfig(hidden_sizes=(4,))
    config = DQNConfig(total_updates=10, replay=ReplayConfig(batch_size=8, min_size=64, capacity=512))
    settings = dataclasses.replace(EXPERIMENT.run, num_envs=4, rollout_length=LENGTH)
    experiment = dataclasses.replace(EXPERIMENT, env=env, network=network, agent=config, run=settings)
    spec = env.source().spec()
    agent = make_dqn(config, spec, network)
    shapes = buffer_shapes(agent.data, trajectory_shapes(agent, spec, settings.num_envs, LENGTH))
    buffer = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    position = buffer.selection.position
    position.num_steps[...] = position.next_step[...] = update * LENGTH
    state = dataclasses.replace(agent.init(jax.random.key(0)), num_updates=np.array(update, np.int32))
    arrays = state_to_arrays(state) | buffer_to_arrays(buffer)
    ModelStore(run / "checkpoints").save(update, arrays, {"agent_name": "dqn", "experiment": to_json(experiment)})


def test_replay_is_of_the_loaded_checkpoint(tmp_path, monkeypatch, capsys):
    save(tmp_path / "run", 2)

    def load_and_train(*arguments, **options):
        loaded = load_agent(*arguments, **options)
        save(tmp_path / "run", 3)
        return loaded

    with monkeypatch.context() as patched:
        patched.setattr(jaxsrl.evaluation.load_agent, "load_agent", load_and_train)
        with pytest.raises(UserError, match="older ones and models have none; if the run trains, record again"):
            Record(tmp_path / "run", tmp_path / "set", replay=True, json=True).run()
    Record(tmp_path / "run", tmp_path / "set", replay=True, json=True).run()
    assert json.loads(capsys.readouterr().out)["origin"]["update"] == 3
    assert open_dataset(tmp_path / "set").manifest.num_steps == 3 * LENGTH
    loaded = load_agent(tmp_path / "run")
    assert loaded.update == 3
    with monkeypatch.context() as patched:
        patched.setattr(DatasetWriter, "append", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            record_replay(loaded, tmp_path / "other", {})
    assert not (tmp_path / "other").exists()
    shutil.rmtree(loaded.checkpoint)
    with pytest.raises(UserError, match="removed .* before its replay buffer was read: record again"):
        record_replay(loaded, tmp_path / "other", {})
