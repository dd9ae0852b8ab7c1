"""Recording of a number of env steps."""

import gymnasium
import jax
import numpy as np

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from jaxsrl.datasets.dataset import find_episodes
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


def test_a_number_of_env_steps_does_not_prefer_short_ones(tmp_path):
    source = make_env(ShortOrLong)
    agent = make_ppo(PPOConfig(), source.spec(), NetworkConfig(hidden_sizes=(4,)))
    params = agent.init(jax.random.key(0)).params
    config = RecordConfig(env_steps=10, epsilon=1.0, max_rows=8)
    dataset = record(agent, params, source, tmp_path / "set", config)
    lengths = find_episodes(dataset.steps).lengths
    # Ten steps are played before a long episode ends. Every row ends the episode that it plays then.
    assert set(lengths) == {2, 50}
    assert 8 <= len(lengths) < 24
    assert dataset.num_valid_steps == lengths.sum() > 10
