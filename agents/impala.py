"""IMPALA: an actor-critic on V-trace, for trajectories of parameters some updates old.

Source: Espeholt et al. 2018 (arXiv:1802.01561), section 4. `docs/algorithms/impala.md` lists what deviates.
"""

import dataclasses

import jax
import jax.numpy as jnp

from agents.api import Agent, Array, Metrics, Params, Trajectory
from agents.binding import keeps_binding
from agents.networks.actor_critic import ActorCritic
from agents.networks.config import NetworkConfig
from agents.ops import returns
from agents.ops.policy_gradient import (
    ActorCriticCoefficients,
    actor_critic_loss,
    approximate_kl,
    counted_log_ratio,
)
from agents.ops.vtrace import VTraceConfig, vtrace
from agents.transforms.on_policy_agent import PolicyGradientConfig, make_policy_gradient_agent
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class IMPALAConfig(PolicyGradientConfig):
    """Hyper-parameters; defaults of the paper's Atari experiments, adapted to means instead of sums over steps.

    Attributes:
        vtrace: Bounds on the probability ratios, and lambda.
    """

    learning_rate: float = 6e-4
    vtrace: VTraceConfig = dataclasses.field(default_factory=VTraceConfig)


@keeps_binding
def make_impala(config: IMPALAConfig, spec: EnvSpec, network: NetworkConfig | ActorCritic) -> Agent:
    """Returns IMPALA for this environment and network; raises UserError where they do not fit."""
    return make_policy_gradient_agent("impala", config, spec, network, loss)


def loss(
    config: IMPALAConfig, net: ActorCritic, params: Params, trajectory: Trajectory, entropy_coef: Array | float
) -> tuple[Array, Metrics]:
    """Returns policy + value error - entropy bonus on the targets of V-trace, and metrics."""
    parameters, value, _ = net.unroll(params, trajectory.observation, trajectory.agent_state, trajectory.is_first)
    parameters = parameters[:-1]
    log_prob, entropy = net.distribution.log_prob(parameters, trajectory.action), net.distribution.entropy(parameters)
    log_ratio = counted_log_ratio(log_prob, trajectory.extras["behavior_log_prob"], trajectory.valid)
    log_ratio, fixed_value = jax.lax.stop_gradient((log_ratio, value))
    steps = (trajectory.reward, fixed_value, trajectory.terminated, trajectory.truncated, trajectory.valid)
    target, advantage = vtrace(log_ratio, *steps, discount=config.discount, config=config.vtrace)
    weight = trajectory.valid.astype(value.dtype)
    if config.normalize_advantage:
        advantage = returns.standardize(advantage, weight)
    coefficients = ActorCriticCoefficients(config.value_coef, entropy_coef, config.value_huber_delta)
    total, metrics = actor_critic_loss(log_prob, entropy, value[:-1], advantage, target, weight, coefficients)
    metrics["policy/approx_kl"] = returns.weighted_mean(approximate_kl(log_ratio), weight)
    ratio, bound = jnp.exp(log_ratio), config.vtrace.rho_bar
    metrics["vtrace/rho_mean"] = returns.weighted_mean(jnp.minimum(bound, ratio), weight)
    metrics["vtrace/clipped_fraction"] = returns.weighted_mean((ratio > bound).astype(value.dtype), weight)
    return total, metrics
