"""Recording of a number of env steps."""

import os

import gymnasium
import jax
import numpy as np
import pytest

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from jaxsrl.datasets.dataset import find_episodes, open_dataset
from jaxsrl.datasets.writer import DatasetWriter
from jaxsrl.envs.registry import make_env
from jaxsrl.evaluation.record import RecordConfig, record


class ShortOrLong(gymnasium.Env):
    """Half of the episodes have 2 steps, the others 50."""

    observation_space = gymnasium.spaces.Box(0, 1000, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 2 if self.np_random.random() < 0.5 else 50
        return np.array([self.left], np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.array([self.left], np.float32), 1.0, self.left == 0, False, {}


def record_some(out):
    source = make_env(ShortOrLong)
    agent = make_ppo(PPOConfig(), source.spec(), NetworkConfig(hidden_sizes=(4,)))
    params = agent.init(jax.random.key(0)).params
    return record(agent, params, source, out, RecordConfig(env_steps=10, epsilon=1.0, max_rows=8))


def test_a_number_of_env_steps_does_not_prefer_short_ones(tmp_path):
    dataset = record_some(tmp_path / "set")
    lengths = find_episodes(dataset.steps).lengths
    # Ten steps are played before a long episode ends. Every row ends the episode that it plays then.
    assert set(lengths) == {2, 50}
    assert 8 <= len(lengths) < 24
    assert dataset.num_valid_steps == lengths.sum() > 10


def test_an_interrupted_recording_has_another_name(tmp_path, monkeypatch):
    append = DatasetWriter.append

    def append_and_stop(writer, steps):
        append(writer, steps)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(DatasetWriter, "append", append_and_stop)
        with pytest.raises(KeyboardInterrupt):
            record_some(tmp_path / "set")
    assert not (tmp_path / "set").exists()
    assert len(find_episodes(open_dataset(tmp_path / ".set.partial" / "set").steps).returns) == 1
    assert len(find_episodes(record_some(tmp_path / "set").steps).returns) >= 8
    assert os.listdir(tmp_path) == ["set"]
