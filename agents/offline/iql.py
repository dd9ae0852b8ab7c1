"""Implicit Q-learning (IQL). Source: Kostrikov et al. 2022 (arXiv:2110.06169), algorithm 1.

`docs/algorithms/offline.md` has the equations of all offline algorithms.
"""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import (
    Action,
    AgentState,
    Array,
    LearnerState,
    Metrics,
    Mode,
    Observation,
    Params,
    Replay,
    ReplayAgent,
    ReplayConfig,
    Sample,
)
from agents.binding import keeps_binding
from agents.networks.config import NetworkConfig, validate_plain_network
from agents.networks.critics import CriticEnsemble, critic_loss, make_critics
from agents.networks.gaussian_actor import GaussianActor, make_gaussian_actor
from agents.networks.observation_scale import normalized_spec
from agents.networks.state_value import StateValue, make_state_value
from agents.ops import validate
from agents.ops.action_scaling import ContinuousActions, continuous_actions
from agents.ops.gradient_descent import descend
from agents.ops.n_step import Transitions, first_n_step_transitions
from agents.ops.optimizers import OptimizerConfig, make_optimizers
from agents.ops.returns import weighted_mean
from agents.ops.schedules import CONSTANT, ScheduleConfig, Schedules, current_values, learning_rates, make_schedule
from agents.ops.target_update import polyak
from agents.settings import complete
from agents.transforms.normalized_samples import with_normalized_samples
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class IQLConfig:
    """Hyper-parameters; the defaults are the paper's for locomotion, but normalized observations and a constant rate of the actor.

    Attributes:
        replay: Sizes and rates of the replay buffer; of a dataset only the batch size counts.
        normalize_observations: Whether observations are normalized by the statistics of all samples.
        total_updates: Updates of the whole run; needed only by schedules.
        discount: g, per env step.
        tau: Step size of the target critics towards the critics.
        expectile: Expectile of the action values that V is fitted to: 0.5 the mean, towards 1 the maximum over recorded actions
            (0.9 for AntMaze).
        inverse_temperature: beta, per reward unit: factor of advantages in the weights of recorded actions (10 for AntMaze). The
            paper divides rewards by the dataset's range of returns and multiplies them by 1,000.
        max_weight: Largest weight of a recorded action.
        deterministic: Whether the policy is its mean, which a squared error fits to recorded actions, instead of a Gaussian.
        actor_learning_rate: Initial learning rate of the actor.
        critic_learning_rate: Initial learning rate of the critics.
        value_learning_rate: Initial learning rate of V.
        learning_rate_schedule: Change of all learning rates over the run.
        actor_schedule: Change of the actor's learning rate over the run, as a further factor; the paper's is "cosine".
        optimizer: Settings of all optimizers, each with its own state.
        num_critics: E; the smallest of their values counts.
    """

    replay: ReplayConfig = dataclasses.field(default_factory=ReplayConfig)
    normalize_observations: bool = True
    total_updates: int = 0
    discount: float = 0.99
    tau: float = 0.005
    expectile: float = 0.7
    inverse_temperature: float = 3.0
    max_weight: float = 100.0
    deterministic: bool = False
    actor_learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    value_learning_rate: float = 3e-4
    learning_rate_schedule: ScheduleConfig = CONSTANT
    actor_schedule: ScheduleConfig = CONSTANT
    optimizer: OptimizerConfig = OptimizerConfig(epsilon=1e-8)
    num_critics: int = 2

    def __post_init__(self) -> None:
        complete(self)
        validate.at_least_one(self, "num_critics")
        validate.positive(self, "actor_learning_rate", "critic_learning_rate", "value_learning_rate", "max_weight")
        validate.not_negative(self, "inverse_temperature")
        validate.fraction(self, "discount", "expectile")
        validate.fraction(self, "tau", above_zero=True)
        validate.uniform_replay(self, "IQL")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class IQLExtra:
    """Learner state of IQL apart from the actor; acting does not need it.

    Attributes:
        critic: Parameters, [E, ...] each leaf.
        target_critic: Parameters, [E, ...] each leaf.
        value: Parameters of V.
    """

    critic: Params
    target_critic: Params
    value: Params


class IQL(NamedTuple):
    """IQL, bound to its configuration and an environment's spec.

    Attributes:
        config: Hyper-parameters.
        actions: Map between actions and [-1, 1]^D.
        actor: The Gaussian policy.
        critics: The ensemble of critics.
        value: V.
        rates: Learning rates of "actor", "critic" and "value" as functions of `num_updates`.
    """

    config: IQLConfig
    actions: ContinuousActions
    actor: GaussianActor
    critics: CriticEnsemble
    value: StateValue
    rates: Schedules


@keeps_binding
def make_iql(config: IQLConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """Returns an IQL agent, for continuous actions; raises UserError where configuration, environment and network do not fit."""
    spec = normalized_spec(spec, config.normalize_observations)
    iql = build_iql(config, spec, network)
    agent = ReplayAgent(
        name="iql",
        init=partial(init, iql),
        initial_agent_state=lambda num_rows: (),
        act=partial(act, iql),
        update=partial(update, iql),
        extras={},
        data=Replay(config.replay, sequence_length=1),
    )
    return with_normalized_samples(agent, spec, config.normalize_observations)


def build_iql(config: IQLConfig, spec: EnvSpec, network: NetworkConfig) -> IQL:
    """Returns the networks and schedules; raises UserError as `make_iql` does."""
    validate_plain_network("IQL", network)
    actions, factor = continuous_actions(spec), make_schedule(config.actor_schedule, 1.0, config.total_updates)
    rates = learning_rates(config, "actor", "critic", "value")
    return IQL(
        config,
        actions,
        make_gaussian_actor(network, spec, actions.size),
        make_critics(network, spec, actions.size, config.num_critics),
        make_state_value(network, spec),
        {**rates, "actor": lambda num_updates: rates["actor"](num_updates) * factor(num_updates)},
    )


def init(iql: IQL, key: Array) -> LearnerState:
    """Returns the initial learner state. `key` is consumed."""
    actor_key, critic_key, value_key = jax.random.split(key, 3)
    learned = {
        "actor": iql.actor.init(actor_key),
        "critic": iql.critics.init(critic_key),
        "value": iql.value.init(value_key),
    }
    optimizers = make_optimizers(iql.config.optimizer, iql.rates)
    opt_state = {name: optimizer.init(learned[name]) for name, optimizer in optimizers.items()}
    # Copied: the state is donated, and no buffer may occur in it twice.
    extra = IQLExtra(learned["critic"], jax.tree.map(jnp.copy, learned["critic"]), learned["value"])
    return LearnerState(learned["actor"], opt_state, jnp.zeros((), jnp.int32), extra)


def act(
    iql: IQL,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Returns actions [B, ...] of the policy: its mean when greedy or deterministic, otherwise samples."""
    del is_first
    greedy = mode is Mode.GREEDY or iql.config.deterministic
    unit = iql.actor.mean(params, observation) if greedy else iql.actor.sample(params, observation, keys)
    return iql.actions.from_unit(unit), {}, agent_state


def update(iql: IQL, state: LearnerState, sample: Sample, key: Array) -> tuple[LearnerState, Metrics, Array]:
    """Returns the state after one gradient step of V, the actor and the critics; metrics; and the windows' priorities.

    Priorities are the mean absolute errors of the critics, in reward units. `key` is not used.
    """
    del key
    batch = first_n_step_transitions(sample.trajectory, iql.config.discount, 1)
    batch = batch._replace(action=iql.actions.to_unit(batch.action))
    extra: IQLExtra = state.extra
    optimizer = make_optimizers(iql.config.optimizer, iql.rates)
    opt_state, now = dict(state.opt_state), state.num_updates

    target_values = iql.critics.values(extra.target_critic, batch.observation, batch.action)
    recorded = jnp.min(target_values, axis=0)
    gradient, metrics = jax.grad(partial(value_loss, iql), has_aux=True)(extra.value, batch, recorded)
    value, opt_state["value"] = descend(optimizer["value"], gradient, opt_state["value"], extra.value, now)

    advantage = recorded - iql.value.values(value, batch.observation)
    gradient, actor_metrics = jax.grad(partial(actor_loss, iql), has_aux=True)(state.params, batch, advantage)
    actor, opt_state["actor"] = descend(optimizer["actor"], gradient, opt_state["actor"], state.params, now)

    # Equation 6: critics learn r + g V(o').
    target = batch.reward + batch.discount * iql.value.values(value, batch.next_observation)
    gradient, (error, critic_metrics) = jax.grad(partial(critic_loss, iql.critics), has_aux=True)(
        extra.critic, batch, target
    )
    critic, opt_state["critic"] = descend(optimizer["critic"], gradient, opt_state["critic"], extra.critic, now)

    extra = IQLExtra(critic, polyak(extra.target_critic, critic, iql.config.tau), value)
    metrics |= actor_metrics | critic_metrics | current_values({"learning_rate": iql.rates["actor"]}, now)
    return LearnerState(actor, opt_state, now, extra), metrics, jnp.mean(jnp.abs(error), axis=0)


def value_loss(iql: IQL, value: Params, batch: Transitions, recorded: Array) -> tuple[Array, Metrics]:
    """Returns E[|expectile - 1(u < 0)| u^2] with u = min Q'(o, a) - V(o) of recorded actions (eq. 5); and metrics."""
    estimate = iql.value.values(value, batch.observation)
    difference = recorded - estimate
    factor = jnp.where(difference > 0.0, iql.config.expectile, 1.0 - iql.config.expectile)
    loss = weighted_mean(factor * jnp.square(difference), batch.weight)
    return loss, {"loss/value": loss, "value/state": weighted_mean(estimate, batch.weight)}


def actor_loss(iql: IQL, actor: Params, batch: Transitions, advantage: Array) -> tuple[Array, Metrics]:
    """Returns -E[min(exp(beta A), max_weight) log pi(a|o)] of recorded actions (eq. 7); and metrics.

    For deterministic policies, -log pi(a|o) is |mu(o) - a|^2.
    """
    weight = jnp.minimum(jnp.exp(iql.config.inverse_temperature * advantage), iql.config.max_weight)
    if iql.config.deterministic:
        distance = jnp.sum(jnp.square(iql.actor.mean(actor, batch.observation) - batch.action), axis=-1)
    else:
        distance = -iql.actor.log_prob(actor, batch.observation, batch.action)
    loss = weighted_mean(weight * distance, batch.weight)
    metrics = {
        "loss/actor": loss,
        "policy/weight": weighted_mean(weight, batch.weight),
        "value/advantage": weighted_mean(advantage, batch.weight),
    }
    return loss, metrics
