"""Advantage actor-critic: one gradient step on the advantages of each trajectory. A3C where replicas push at their own pace.

Source: Mnih et al. 2016 (arXiv:1602.01783), section 4 and algorithm S3. `docs/algorithms/a2c.md` lists what deviates.
"""

import dataclasses

import jax

from agents.api import Agent, Array, Metrics, OnPolicy, Params, Trajectory
from agents.binding import keeps_binding
from agents.networks.actor_critic import ActorCritic
from agents.networks.config import NetworkConfig
from agents.ops import returns, validate
from agents.ops.policy_gradient import (
    ActorCriticCoefficients,
    actor_critic_loss,
    approximate_kl,
    counted_log_ratio,
)
from agents.transforms.on_policy_agent import PolicyGradientConfig, make_policy_gradient_agent
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class A2CConfig(PolicyGradientConfig):
    """Hyper-parameters; defaults of the usual code (OpenAI Baselines) where the paper drew them at random.

    Attributes:
        gae_lambda: lambda of GAE; 1 takes all rewards of the trajectory, as the paper does, 0 is the one-step actor-critic.
    """

    gae_lambda: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.fraction(self, "gae_lambda")


@keeps_binding
def make_a2c(config: A2CConfig, spec: EnvSpec, network: NetworkConfig | ActorCritic) -> Agent:
    """Returns A2C for this environment and network; raises UserError where they do not fit."""
    agent = make_policy_gradient_agent("a2c", config, spec, network, loss)
    return agent._replace(data=OnPolicy(max_lag=0))


def loss(
    config: A2CConfig, net: ActorCritic, params: Params, trajectory: Trajectory, entropy_coef: Array | float
) -> tuple[Array, Metrics]:
    """Returns policy + value error - entropy bonus on advantages of GAE, and metrics. The probability ratio is taken to be 1."""
    parameters, value, _ = net.unroll(params, trajectory.observation, trajectory.agent_state, trajectory.is_first)
    parameters = parameters[:-1]
    log_prob, entropy = net.distribution.log_prob(parameters, trajectory.action), net.distribution.entropy(parameters)
    log_ratio = counted_log_ratio(log_prob, trajectory.extras["behavior_log_prob"], trajectory.valid)
    log_ratio, fixed_value = jax.lax.stop_gradient((log_ratio, value))
    ends = (trajectory.terminated, trajectory.truncated, trajectory.valid)
    advantage = returns.gae(trajectory.reward, fixed_value, *ends, discount=config.discount, lambda_=config.gae_lambda)
    target, weight = advantage + fixed_value[:-1], trajectory.valid.astype(value.dtype)
    if config.normalize_advantage:
        advantage = returns.standardize(advantage, weight)
    coefficients = ActorCriticCoefficients(config.value_coef, entropy_coef, config.value_huber_delta)
    total, metrics = actor_critic_loss(log_prob, entropy, value[:-1], advantage, target, weight, coefficients)
    metrics["policy/approx_kl"] = returns.weighted_mean(approximate_kl(log_ratio), weight)
    return total, metrics
