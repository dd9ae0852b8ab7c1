"""A run from a checkpoint whose episodes cannot be continued."""

import jax
import numpy as np

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.training.run_state import from_arrays, state_to_arrays


def test_restarted_environments_use_unused_episode_seeds():
    spec = EnvConfig("CartPole-v1").source().spec()
    agent = make_ppo(PPOConfig(), spec, NetworkConfig(hidden_sizes=(4,)))
    arrays = state_to_arrays(agent.init(jax.random.key(0)))
    for steps in (0, 12, 40):
        found = from_arrays(agent, jax.random.key(0), {**arrays, "steps": np.array(steps)}, 3, 4, spec)
        # After `steps` steps, a row is in an episode of a number below that.
        assert found.reset.episodes == (steps,) * 3
        np.testing.assert_array_equal(found.log.episodes, found.reset.episodes)
