"""PPO reaches the known values of the probe environments, through the real run."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.actor_critic import make_actor_critic
from agents.networks.config import NetworkConfig
from agents.ops.optimizers import OptimizerConfig
from agents.ppo import PPOConfig, make_ppo
from tests.learning.probe_runs import BEST_ACTIONS, DISCOUNT, VALUES, probe_source, trained

NETWORK = NetworkConfig(hidden_sizes=(32,))


QUICK = ("MatchObservation", "EndsByClock", "DiscountedReward")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in VALUES]
)
def test_values_and_actions_of_a_probe_are_learned(tmp_path, name):
    config = PPOConfig(
        learning_rate=5e-3, discount=DISCOUNT, entropy_coef=0.0, optimizer=OptimizerConfig(max_grad_norm=10.0)
    )
    make_agent = partial(make_ppo, config, network=NETWORK)
    spec, _, params = trained(tmp_path, probe_source(name), make_agent, rows=16, steps=16, updates=150)
    net = make_actor_critic(NETWORK, spec)
    observations = jnp.array(list(VALUES[name]))[:, None]
    values = net.value(params, observations)
    np.testing.assert_allclose(values, list(VALUES[name].values()), atol=0.1)
    if name in BEST_ACTIONS:
        actions = net.distribution.mode(net.policy(params, observations))
        assert actions.tolist() == list(BEST_ACTIONS[name].values())
