"""REINFORCE with a baseline: the policy gradient of the returns that episodes had. MSRL calls it PG.

Source: Williams 1992; Sutton and Barto 2018, section 13.4. `docs/algorithms/reinforce.md` lists what deviates.
"""

import dataclasses

import jax
import jax.numpy as jnp

from agents.api import Agent, Array, Metrics, OnPolicy, Params, Trajectory
from agents.binding import keeps_binding
from agents.networks.actor_critic import ActorCritic
from agents.networks.config import NetworkConfig
from agents.ops import returns
from agents.ops.optimizers import OptimizerConfig
from agents.ops.policy_gradient import (
    ActorCriticCoefficients,
    actor_critic_loss,
    approximate_kl,
    counted_log_ratio,
)
from agents.settings import Unread
from agents.transforms.on_policy_agent import PolicyGradientConfig, make_policy_gradient_agent
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class REINFORCEConfig(PolicyGradientConfig):
    """Hyper-parameters.

    Attributes:
        baseline: Whether the value of the observation is subtracted from the return. Without it, and without `bootstrap`, no value
            is learned.
        bootstrap: Value after an episode's last step in the trajectory. False: 0; an episode that was truncated has the return it
            got, and steps whose episode continues after the trajectory do not count. True: the value of the observation reached,
            in both cases; every valid step counts.
    """

    learning_rate: float = 1e-3
    optimizer: OptimizerConfig = OptimizerConfig(max_grad_norm=10.0)
    baseline: bool = True
    bootstrap: bool = False

    def unread(self) -> Unread:
        """Returns the rules for fields without effect."""
        yield not (self.baseline or self.bootstrap), "no value is learned", "value_coef", "value_huber_delta"


@keeps_binding
def make_reinforce(config: REINFORCEConfig, spec: EnvSpec, network: NetworkConfig | ActorCritic) -> Agent:
    """Returns REINFORCE for this environment and network; raises UserError where they do not fit."""
    agent = make_policy_gradient_agent("reinforce", config, spec, network, loss)
    return agent._replace(data=OnPolicy(max_lag=0))


def loss(
    config: REINFORCEConfig, net: ActorCritic, params: Params, trajectory: Trajectory, entropy_coef: Array | float
) -> tuple[Array, Metrics]:
    """Returns policy + value error - entropy bonus on the returns of episodes, and metrics; the ratio is taken to be 1."""
    parameters, value, _ = net.unroll(params, trajectory.observation, trajectory.agent_state, trajectory.is_first)
    parameters = parameters[:-1]
    log_prob, entropy = net.distribution.log_prob(parameters, trajectory.action), net.distribution.entropy(parameters)
    log_ratio = counted_log_ratio(log_prob, trajectory.extras["behavior_log_prob"], trajectory.valid)
    log_ratio, fixed_value = jax.lax.stop_gradient((log_ratio, value))
    bootstrap = fixed_value if config.bootstrap else jnp.zeros_like(fixed_value)
    ends = (trajectory.terminated, trajectory.truncated, trajectory.valid)
    target, is_complete = returns.monte_carlo(trajectory.reward, bootstrap, *ends, discount=config.discount)
    counts = trajectory.valid if config.bootstrap else is_complete
    advantage = jnp.where(counts, target - fixed_value[:-1] if config.baseline else target, 0.0)
    weight = counts.astype(value.dtype)
    if config.normalize_advantage:
        advantage = returns.standardize(advantage, weight)
    value_coef = config.value_coef if config.baseline or config.bootstrap else 0.0
    coefficients = ActorCriticCoefficients(value_coef, entropy_coef, config.value_huber_delta)
    total, metrics = actor_critic_loss(log_prob, entropy, value[:-1], advantage, target, weight, coefficients)
    metrics["policy/approx_kl"] = returns.weighted_mean(approximate_kl(log_ratio), weight)
    valid = trajectory.valid.astype(value.dtype)
    metrics["returns/complete_fraction"] = returns.weighted_mean(is_complete.astype(value.dtype), valid)
    return total, metrics
