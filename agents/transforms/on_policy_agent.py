"""Construction of on-policy agents: a policy network that acts, an update, and the wrappers around that update."""

import dataclasses
from functools import partial
from typing import Protocol

import jax.numpy as jnp
import optax

from agents.api import (
    Action,
    Agent,
    AgentState,
    Array,
    GradientSteps,
    InitFn,
    LearnerState,
    Mode,
    Observation,
    OnPolicy,
    Params,
    Trajectory,
    UpdateFn,
)
from agents.networks.actor_critic import ActorCritic
from agents.networks.coma import ComaNetworks
from agents.ops import validate
from agents.ops.optimizers import OptimizerName, clipped_adam, clipped_rmsprop
from agents.ops.schedules import Kind
from agents.transforms.changed_trajectories import with_changed_trajectories
from agents.transforms.normalization import NormalizationConfig, with_normalization
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, EnvSpec

EXTRAS = {"behavior_log_prob": ArraySpec((), "float32")}
"""Extra of each step from `act`: the log-probability, in nats, of the action under the acting policy."""


class OnPolicyConfig(Protocol):
    """Settings that every on-policy algorithm has.

    Attributes:
        discount: g.
        normalization: Observations and rewards by running statistics.
    """

    @property
    def discount(self) -> float: ...

    @property
    def normalization(self) -> NormalizationConfig: ...


@dataclasses.dataclass(frozen=True)
class PolicyGradientConfig:
    """Hyper-parameters of A2C, IMPALA and REINFORCE, which take one gradient step on each trajectory.

    Attributes:
        learning_rate: Initial learning rate of the optimizer.
        learning_rate_schedule: "constant", or "linear" to 0 after `total_updates`.
        total_updates: Updates of the whole run, for the schedule.
        discount: g.
        value_coef: Weight of the value error.
        entropy_coef: Weight of the entropy bonus.
        max_grad_norm: Gradients are scaled down to this global norm.
        normalize_advantage: Whether advantages are standardized over the steps that count.
        optimizer: "rmsprop" (no momentum) or "adam".
        optimizer_epsilon: Under the root for "rmsprop", as in TensorFlow; added to the root for "adam".
        rmsprop_decay: Decay of the running mean of squared gradients.
        rmsprop_initial_scale: Initial value of that mean; see `agents.ops.optimizers.clipped_rmsprop`.
        normalization: Observations and rewards by running statistics; off by default.
    """

    learning_rate: float = 7e-4
    learning_rate_schedule: Kind = "constant"
    total_updates: int = 0
    discount: float = 0.99
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    max_grad_norm: float = 0.5
    normalize_advantage: bool = False
    optimizer: OptimizerName = "rmsprop"
    optimizer_epsilon: float = 1e-5
    rmsprop_decay: float = 0.99
    rmsprop_initial_scale: float = 1.0
    normalization: NormalizationConfig = dataclasses.field(default_factory=NormalizationConfig)

    def __post_init__(self) -> None:
        validate.positive(self, "learning_rate", "max_grad_norm", "optimizer_epsilon")
        validate.not_negative(self, "value_coef", "entropy_coef", "rmsprop_initial_scale")
        validate.fraction(self, "discount")
        if not 0.0 <= self.rmsprop_decay < 1.0:
            raise UserError(f"rmsprop_decay must lie in [0, 1): got {self.rmsprop_decay}")
        if self.optimizer not in ("rmsprop", "adam"):
            raise UserError(f"optimizer must be 'rmsprop' or 'adam': got {self.optimizer!r}")


def make_optimizer(config: PolicyGradientConfig, rate: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """Returns the configured optimizer after a clip of the gradient's global norm."""
    if config.optimizer == "adam":
        return clipped_adam(rate, config.max_grad_norm, config.optimizer_epsilon)
    return clipped_rmsprop(
        rate, config.max_grad_norm, config.optimizer_epsilon, config.rmsprop_decay, config.rmsprop_initial_scale
    )


def init_state(net: ActorCritic, optimizer: optax.GradientTransformationExtraArgs, key: Array) -> LearnerState:
    """Returns the first learner state. `key` is consumed."""
    params = net.init(key)
    return LearnerState(params, optimizer.init(params), jnp.zeros((), jnp.int32))


def make_on_policy_agent(
    name: str,
    config: OnPolicyConfig,
    spec: EnvSpec,
    net: ActorCritic | ComaNetworks,
    init: InitFn,
    update: UpdateFn,
    steps: GradientSteps | None,
    reward_clip: float | None = None,
) -> Agent:
    """Returns an agent that acts by `net` and learns once from each trajectory.

    These wrappers are around the update, outermost first: clipped rewards, normalization.
    `jaxsrl.learner.learning_agent` adds those of a run.

    Args:
        name: Name of the algorithm.
        config: Configuration of the algorithm.
        spec: Specification of the environment.
        net: Network bound to the spec.
        init: Makes the first learner state.
        update: Learns from one trajectory.
        steps: The same update in parts, for the plan `central`; None: the algorithm does not run under it.
        reward_clip: Largest absolute reward, in environment units. None: off.
    """
    agent = Agent(name, init, net.initial_state, partial(act, net), update, EXTRAS, OnPolicy(), steps)
    agent = with_normalization(agent, config.normalization, spec, config.discount)
    return agent if reward_clip is None else with_changed_trajectories(agent, partial(_clip_rewards, reward_clip))


def act(
    net: ActorCritic | ComaNetworks,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Returns actions of observations [B, ...], their log-probabilities [B] as extras, and the next state. Computes no values."""
    distribution = net.distribution
    if mode is Mode.SAMPLE and isinstance(net, ActorCritic) and net.explore is not None:
        parameters, action, agent_state = net.explore(params, observation, agent_state, is_first, keys)
    else:
        parameters, agent_state = net.step(params, observation, agent_state, is_first)
        action = distribution.sample(parameters, keys) if mode is Mode.SAMPLE else distribution.mode(parameters)
    return action, {"behavior_log_prob": distribution.log_prob(parameters, action)}, agent_state


def _clip_rewards(limit: float, batch: Trajectory) -> Trajectory:
    return dataclasses.replace(batch, reward=jnp.clip(batch.reward, -limit, limit))
