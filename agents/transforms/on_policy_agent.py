"""Construction of on-policy agents: a policy network that acts, an update, and the wrappers around that update."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import jax.numpy as jnp

from agents.api import (
    Action,
    Agent,
    AgentState,
    Array,
    GradientSteps,
    InitFn,
    LearnerState,
    Metrics,
    Mode,
    Observation,
    OnPolicy,
    Params,
    Trajectory,
    UpdateFn,
)
from agents.networks.actor_critic import ActorCritic
from agents.networks.coma import ComaNetworks
from agents.networks.config import NetworkConfig
from agents.networks.custom import bound_network
from agents.networks.observation_scale import normalized_spec
from agents.ops import popart, returns, validate
from agents.ops.gradient_steps import single_gradient_step, single_step_update
from agents.ops.optimizers import OptimizerConfig, make_optimizer
from agents.ops.schedules import CONSTANT, ScheduleConfig, init_factors, make_schedules
from agents.settings import complete
from agents.transforms.changed_trajectories import with_changed_trajectories
from agents.transforms.normalization import NormalizationConfig, with_normalization
from envpool_bridge.spec.specs import ArraySpec, EnvSpec

_GAE_LAMBDA = 0.95  # of the advantages of algorithms that do not use them

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
        learning_rate_schedule: Change of the learning rate over the run.
        total_updates: Updates of the whole run, for schedules.
        discount: g.
        value_coef: Weight of the value error.
        value_huber_delta: Value error beyond which its loss is linear, in reward units; None: squared everywhere.
        entropy_coef: Initial weight of the entropy bonus.
        entropy_coef_schedule: Change of that weight over the run.
        normalize_advantage: Whether advantages are standardized over the steps that count.
        reward_clip: Rewards are clipped to [-reward_clip, reward_clip] before they are scaled; None: off.
        optimizer: Settings of the optimizer.
        normalization: Observations and rewards by running statistics; off by default.
    """

    learning_rate: float = 7e-4
    learning_rate_schedule: ScheduleConfig = CONSTANT
    total_updates: int = 0
    discount: float = 0.99
    value_coef: float = 0.5
    value_huber_delta: float | None = None
    entropy_coef: float = 0.01
    entropy_coef_schedule: ScheduleConfig = CONSTANT
    normalize_advantage: bool = False
    reward_clip: float | None = None
    optimizer: OptimizerConfig = OptimizerConfig("rmsprop", max_grad_norm=0.5)
    normalization: NormalizationConfig = dataclasses.field(default_factory=NormalizationConfig)

    def __post_init__(self) -> None:
        complete(self)
        validate.positive(self, "learning_rate", "value_huber_delta", "reward_clip")
        validate.not_negative(self, "value_coef", "entropy_coef")
        validate.fraction(self, "discount")


PolicyGradientLoss = Callable[[Any, ActorCritic, Params, Trajectory, Array | float], tuple[Array, Metrics]]
"""Maps (configuration, network, parameters, trajectory, present weight of the entropy bonus) to the loss and float32 metrics."""


def make_policy_gradient_agent(
    name: str,
    config: PolicyGradientConfig,
    spec: EnvSpec,
    network: NetworkConfig | ActorCritic,
    loss: PolicyGradientLoss,
) -> Agent:
    """Returns an agent whose update is one gradient step on the loss of a trajectory.

    Raises:
        UserError: Environment and network do not fit, or a schedule needs the number of updates.
    """
    spec = normalized_spec(spec, config.normalization.observations)
    net = bound_network(network, spec)
    schedules = make_schedules(config, "learning_rate", "entropy_coef")
    optimizer = make_optimizer(config.optimizer, schedules["learning_rate"])

    def init(key: Array) -> LearnerState:
        params = net.init(key)
        return LearnerState(params, optimizer.init(params), jnp.zeros((), jnp.int32), init_factors("entropy_coef"))

    def scheduled_loss(params: Params, trajectory: Trajectory, extra: Any, num_updates: Array) -> tuple[Array, Metrics]:
        entropy_coef = schedules["entropy_coef"](num_updates) * extra["entropy_coef_factor"]
        return loss(config, net, params, trajectory, entropy_coef)

    parts = scheduled_loss, optimizer, schedules
    update, steps = single_step_update(*parts), single_gradient_step(*parts)
    return make_on_policy_agent(name, config, spec, net, init, update, steps, config.reward_clip)


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
    if isinstance(net, ActorCritic):
        agent = agent._replace(advantage=partial(advantage, net, config))
    if isinstance(net, ActorCritic) and not net.is_recurrent:
        agent = agent._replace(log_prob=partial(log_prob, net))
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


def log_prob(net: ActorCritic, params: Params, observation: Observation, action: Action) -> Array:
    """Returns the log-probabilities [N] of actions [N, ...], also of others than its own, under the policy, in nats."""
    return net.distribution.log_prob(net.policy(params, observation), net.distribution.inside(action))


def advantage(
    net: ActorCritic, config: OnPolicyConfig, params: Params, extra: Any, batch: Trajectory
) -> tuple[Array, Array]:
    """Returns the generalized advantages [T, B], and which steps count; lambda is the algorithm's own, or 0.95."""
    _, value, _ = net.unroll(params, batch.observation, batch.agent_state, batch.is_first)
    if "popart" in extra:
        value = popart.denormalize(extra["popart"], value)
    steps = (batch.reward, value, batch.terminated, batch.truncated, batch.valid)
    lambda_ = getattr(config, "gae_lambda", _GAE_LAMBDA)
    return returns.gae(*steps, discount=config.discount, lambda_=lambda_), batch.valid


def _clip_rewards(limit: float, batch: Trajectory) -> Trajectory:
    return dataclasses.replace(batch, reward=jnp.clip(batch.reward, -limit, limit))
