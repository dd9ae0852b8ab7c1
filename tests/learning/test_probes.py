"""PPO reaches the known values of the probe environments, through the real run."""

import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.actor_critic import make_actor_critic
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.adapters.environment import EnvConfig
from jaxsrl.config import RunConfig
from jaxsrl.dataflow.policies import POLICIES
from jaxsrl.dataflow.resources import Resources
from jaxsrl.runtime.run import run

DISCOUNT = 0.9
NETWORK = NetworkConfig(hidden_sizes=(32,))
# observation -> optimal value, as each probe's docstring derives it
VALUES = {
    "ConstantReward": {0.0: 1.0},
    "PredictableReward": {-1.0: -1.0, 1.0: 1.0},
    "DiscountedReward": {0.0: DISCOUNT, 1.0: 1.0},
    "ActionReward": {0.0: 1.0},
    "MatchObservation": {-1.0: 1.0, 1.0: 1.0},
    "EndsByTask": {0.0: 1.0},
    "EndsByClock": {0.0: 1.0 / (1.0 - DISCOUNT)},
}
BEST_ACTIONS = {"ActionReward": {0.0: 1}, "MatchObservation": {-1.0: 0, 1.0: 1}}


@pytest.mark.parametrize("name", VALUES)
def test_values_and_actions_of_a_probe_are_learned(tmp_path, name):
    config = RunConfig(
        policy="serial",
        directory=str(tmp_path),
        num_envs=16,
        rollout_length=16,
        env_steps=16 * 16 * 150,
        max_policy_lag=0,
        checkpoint_every_updates=0,
    )
    agent_config = PPOConfig(learning_rate=5e-3, discount=DISCOUNT, entropy_coef=0.0, max_grad_norm=10.0)
    source = EnvConfig(name, suite="probe").source()
    spec = source.spec()
    agent = make_ppo(agent_config, spec, NETWORK)
    report = run(POLICIES["serial"](config, Resources.detect()), agent, source, config, spec=spec, quiet=True)
    net = make_actor_critic(NETWORK, spec)
    observations = jnp.array(list(VALUES[name]))[:, None]
    values = net.value(report.state.params, observations)
    np.testing.assert_allclose(values, list(VALUES[name].values()), atol=0.1)
    if name in BEST_ACTIONS:
        actions = net.distribution.mode(net.policy(report.state.params, observations))
        assert actions.tolist() == list(BEST_ACTIONS[name].values())
