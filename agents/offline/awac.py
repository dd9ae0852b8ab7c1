"""Advantage-weighted actor-critic (AWAC). Source: Nair et al. 2020 (arXiv:2006.09359), algorithm 1.

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
from agents.ops import validate
from agents.ops.action_scaling import ContinuousActions, continuous_actions
from agents.ops.gradient_descent import descend
from agents.ops.n_step import Transitions, first_n_step_transitions
from agents.ops.optimizers import OptimizerConfig, make_optimizers
from agents.ops.returns import weighted_mean
from agents.ops.schedules import CONSTANT, ScheduleConfig, Schedules, current_values, learning_rates
from agents.ops.target_update import polyak
from agents.settings import complete
from agents.transforms.normalized_samples import with_normalized_samples
from envpool_bridge.spec.specs import EnvSpec


@dataclasses.dataclass(frozen=True)
class AWACConfig:
    """Hyper-parameters.

    Attributes:
        replay: Sizes and rates of the replay buffer; of a dataset only the batch size counts.
        normalize_observations: Whether observations are normalized by the statistics of all samples.
        total_updates: Updates of the whole run; needed only by schedules.
        discount: g, per env step.
        tau: Step size of the target critics towards the critics.
        temperature: lambda, reward units: advantages are divided by it in the weights of recorded actions.
        max_weight: Largest weight of a recorded action.
        actor_learning_rate: Initial learning rate of the actor.
        critic_learning_rate: Initial learning rate of the critics.
        learning_rate_schedule: Change of all learning rates over the run.
        optimizer: Settings of all optimizers, each with its own state.
        num_critics: E; the smallest of their values counts.
    """

    replay: ReplayConfig = dataclasses.field(default_factory=ReplayConfig)
    normalize_observations: bool = True
    total_updates: int = 0
    discount: float = 0.99
    tau: float = 0.005
    temperature: float = 1.0
    max_weight: float = 100.0
    actor_learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    learning_rate_schedule: ScheduleConfig = CONSTANT
    optimizer: OptimizerConfig = OptimizerConfig(epsilon=1e-8)
    num_critics: int = 2

    def __post_init__(self) -> None:
        complete(self)
        validate.at_least_one(self, "num_critics")
        validate.positive(self, "actor_learning_rate", "critic_learning_rate", "temperature", "max_weight")
        validate.fraction(self, "discount")
        validate.fraction(self, "tau", above_zero=True)
        validate.uniform_replay(self, "AWAC")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AWACExtra:
    """Learner state of AWAC apart from the actor; acting does not need it.

    Attributes:
        critic: Parameters, [E, ...] each leaf.
        target_critic: Parameters, [E, ...] each leaf.
    """

    critic: Params
    target_critic: Params


class AWAC(NamedTuple):
    """AWAC, bound to its configuration and an environment's spec.

    Attributes:
        config: Hyper-parameters.
        actions: Map between actions and [-1, 1]^D.
        actor: The Gaussian policy.
        critics: The ensemble of critics.
        rates: Learning rates of "actor" and "critic" as functions of `num_updates`.
    """

    config: AWACConfig
    actions: ContinuousActions
    actor: GaussianActor
    critics: CriticEnsemble
    rates: Schedules


@keeps_binding
def make_awac(config: AWACConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """Returns an AWAC agent, for continuous actions; raises UserError where configuration, environment and network do not fit."""
    spec = normalized_spec(spec, config.normalize_observations)
    awac = build_awac(config, spec, network)
    agent = ReplayAgent(
        name="awac",
        init=partial(init, awac),
        initial_agent_state=lambda num_rows: (),
        act=partial(act, awac),
        update=partial(update, awac),
        extras={},
        data=Replay(config.replay, sequence_length=1),
    )
    return with_normalized_samples(agent, spec, config.normalize_observations)


def build_awac(config: AWACConfig, spec: EnvSpec, network: NetworkConfig) -> AWAC:
    """Returns the networks and schedules; raises UserError as `make_awac` does."""
    validate_plain_network("AWAC", network)
    actions = continuous_actions(spec)
    return AWAC(
        config,
        actions,
        make_gaussian_actor(network, spec, actions.size),
        make_critics(network, spec, actions.size, config.num_critics),
        learning_rates(config, "actor", "critic"),
    )


def init(awac: AWAC, key: Array) -> LearnerState:
    """Returns the initial learner state. `key` is consumed."""
    actor_key, critic_key = jax.random.split(key)
    learned = {"actor": awac.actor.init(actor_key), "critic": awac.critics.init(critic_key)}
    optimizers = make_optimizers(awac.config.optimizer, awac.rates)
    opt_state = {name: optimizer.init(learned[name]) for name, optimizer in optimizers.items()}
    # Copied: the state is donated, and no buffer may occur in it twice.
    extra = AWACExtra(learned["critic"], jax.tree.map(jnp.copy, learned["critic"]))
    return LearnerState(learned["actor"], opt_state, jnp.zeros((), jnp.int32), extra)


def act(
    awac: AWAC,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Returns actions [B, ...] of the policy: its mean when greedy, otherwise samples."""
    del is_first
    greedy = mode is Mode.GREEDY
    unit = awac.actor.mean(params, observation) if greedy else awac.actor.sample(params, observation, keys)
    return awac.actions.from_unit(unit), {}, agent_state


def update(awac: AWAC, state: LearnerState, sample: Sample, key: Array) -> tuple[LearnerState, Metrics, Array]:
    """Returns the state after one gradient step of the critics and the actor, metrics, and the windows' priorities.

    Priorities are the mean absolute errors of the critics, in reward units. `key` is consumed.
    """
    target_key, baseline_key = jax.random.split(key)
    batch = first_n_step_transitions(sample.trajectory, awac.config.discount, 1)
    batch = batch._replace(action=awac.actions.to_unit(batch.action))
    extra: AWACExtra = state.extra
    optimizer = make_optimizers(awac.config.optimizer, awac.rates)
    opt_state, now = dict(state.opt_state), state.num_updates

    bootstrap = policy_values(awac, state.params, extra.target_critic, batch.next_observation, target_key)
    target = batch.reward + batch.discount * bootstrap
    gradient, (error, metrics) = jax.grad(partial(critic_loss, awac.critics), has_aux=True)(extra.critic, batch, target)
    critic, opt_state["critic"] = descend(optimizer["critic"], gradient, opt_state["critic"], extra.critic, now)

    recorded = jnp.min(awac.critics.values(critic, batch.observation, batch.action), axis=0)
    advantage = recorded - policy_values(awac, state.params, critic, batch.observation, baseline_key)
    gradient, actor_metrics = jax.grad(partial(actor_loss, awac), has_aux=True)(state.params, batch, advantage)
    actor, opt_state["actor"] = descend(optimizer["actor"], gradient, opt_state["actor"], state.params, now)

    extra = AWACExtra(critic, polyak(extra.target_critic, critic, awac.config.tau))
    metrics |= actor_metrics | current_values({"learning_rate": awac.rates["actor"]}, now)
    return LearnerState(actor, opt_state, now, extra), metrics, jnp.mean(jnp.abs(error), axis=0)


def policy_values(awac: AWAC, actor: Params, critic: Params, observation: Observation, key: Array) -> Array:
    """Returns [N] float32: the smallest critic's value of an action sampled from the policy. `key` is consumed."""
    count = jax.tree.leaves(observation)[0].shape[0]
    action = awac.actor.sample(actor, observation, jax.random.split(key, count))
    return jnp.min(awac.critics.values(critic, observation, action), axis=0)


def actor_loss(awac: AWAC, actor: Params, batch: Transitions, advantage: Array) -> tuple[Array, Metrics]:
    """Returns -E[min(exp(A / lambda), max_weight) log pi(a|o)] of recorded actions (eq. 13); and metrics."""
    weight = jnp.minimum(jnp.exp(advantage / awac.config.temperature), awac.config.max_weight)
    log_prob = awac.actor.log_prob(actor, batch.observation, batch.action)
    loss = -weighted_mean(weight * log_prob, batch.weight)
    metrics = {
        "loss/actor": loss,
        "policy/weight": weighted_mean(weight, batch.weight),
        "value/advantage": weighted_mean(advantage, batch.weight),
    }
    return loss, metrics
