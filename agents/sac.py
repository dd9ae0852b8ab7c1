"""Soft actor-critic (SAC). Source: Haarnoja et al. 2018 (arXiv:1812.05905), "Soft Actor-Critic Algorithms and Applications".

`docs/algorithms/sac.md` lists the equations and every deviation.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

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
from agents.networks.continuous_actors import SquashedActor, make_squashed_actor, squash
from agents.networks.critics import CriticEnsemble, critic_loss, make_critics
from agents.networks.observation_scale import normalized_spec
from agents.ops import validate
from agents.ops.action_scaling import ContinuousActions, continuous_actions, sync_random_acting, uniform_actions
from agents.ops.gradient_descent import descend, step_when_due
from agents.ops.importance_weights import importance_exponent_schedule, importance_weights
from agents.ops.n_step import Transitions, first_n_step_transitions
from agents.ops.optimizers import OptimizerConfig, make_optimizer
from agents.ops.returns import weighted_mean
from agents.ops.schedules import CONSTANT, Schedule, ScheduleConfig, Schedules, current_values, learning_rates
from agents.ops.target_update import polyak
from agents.settings import complete
from agents.transforms.normalized_samples import with_normalized_samples
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec

CriticLossFn = Callable[[Params], tuple[Array, tuple[Array, Metrics]]]
"""Maps parameters of the critics to the loss, the errors [E, N], and metrics."""

DEFAULT_REPLAY = ReplayConfig(capacity=1_000_000, batch_size=256, min_size=10_000, gradient_steps_per_env_step=1.0)
"""One gradient step on 256 transitions per env step after the first 10,000, from the newest million."""


@dataclasses.dataclass(frozen=True)
class SACConfig:
    """Hyper-parameters; the defaults are those of the paper, table 1, but for its network: two layers of 256 ReLU units.

    Attributes:
        replay: Sizes, rates and priorities of the replay buffer.
        normalize_observations: Whether observations are normalized by the statistics of all samples.
        total_updates: Trajectories of the whole run; needed only by schedules, and by priorities, whose correction grows.
        discount: g, per env step.
        n_step: Rewards of a return before it bootstraps; off-policy if more than 1.
        tau: Step size of the target critics towards the critics.
        actor_learning_rate: Initial learning rate of the actor.
        critic_learning_rate: Initial learning rate of the critics.
        learning_rate_schedule: Change of all learning rates over the run.
        optimizer: Settings of all optimizers, each with its own state.
        random_updates: Trajectories collected by uniformly random actions. None: all before the first gradient step.
        importance_sampling_exponent: beta of prioritized replay at the first update; it grows to 1 over the run.
        num_critics: E; targets use the smallest of their values.
        num_target_critics: M, critics drawn at each gradient step, of whose values targets use the smallest; the actor then
            climbs the mean of all E (REDQ, Chen et al. 2021, arXiv:2101.05982). None: the smallest of all E in both.
        policy_delay: Critic steps per step of the actor and the temperature.
        init_temperature: Initial alpha, reward units per nat.
        autotune_temperature: Whether alpha is learned so that the entropy approaches `target_entropy`; otherwise it is constant.
        target_entropy: Nats, of actions scaled to [-1, 1] (below D log 2). None: -D for D action elements.
        temperature_learning_rate: Initial learning rate of log alpha, whose gradient is not clipped.
    """

    replay: ReplayConfig = DEFAULT_REPLAY
    normalize_observations: bool = False
    total_updates: int = 0
    discount: float = 0.99
    n_step: int = 1
    tau: float = 0.005
    actor_learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    learning_rate_schedule: ScheduleConfig = CONSTANT
    optimizer: OptimizerConfig = OptimizerConfig(epsilon=1e-8)
    random_updates: int | None = None
    importance_sampling_exponent: float = 0.4
    num_critics: int = 2
    num_target_critics: int | None = None
    policy_delay: int = 1
    init_temperature: float = 1.0
    autotune_temperature: bool = True
    target_entropy: float | None = None
    temperature_learning_rate: float = 3e-4

    def __post_init__(self) -> None:
        complete(self)
        validate.at_least_one(self, "n_step", "num_critics", "policy_delay")
        validate.positive(self, "actor_learning_rate", "critic_learning_rate")
        validate.positive(self, "init_temperature", "temperature_learning_rate")
        validate.fraction(self, "discount", "importance_sampling_exponent")
        validate.fraction(self, "tau", above_zero=True)
        validate.random_updates(self)
        if self.num_target_critics is not None and not 1 <= self.num_target_critics <= self.num_critics:
            raise UserError(
                f"num_target_critics must be from 1 to num_critics, {self.num_critics}: got {self.num_target_critics}"
            )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SACExtra:
    """Learner state of SAC apart from the actor; acting does not need it.

    Attributes:
        critic: Parameters, [E, ...] each leaf.
        target_critic: Parameters, [E, ...] each leaf.
        log_temperature: float32 scalar, log alpha.
        num_gradient_steps: int32 scalar, gradient steps taken so far.
    """

    critic: Params
    target_critic: Params
    log_temperature: Array
    num_gradient_steps: Array


class SAC(NamedTuple):
    """SAC, bound to its configuration and an environment's spec.

    Attributes:
        config: Hyper-parameters.
        actions: Map between actions and [-1, 1]^D.
        actor: The squashed Gaussian policy.
        critics: The ensemble of critics.
        target_entropy: Nats.
        beta: Importance-sampling exponent as a function of `num_updates`.
        rates: Learning rates of "actor", "critic" and "temperature" as functions of `num_updates`.
    """

    config: SACConfig
    actions: ContinuousActions
    actor: SquashedActor
    critics: CriticEnsemble
    target_entropy: float
    beta: Schedule
    rates: Schedules


@keeps_binding
def make_sac(config: SACConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """Returns a SAC agent; raises UserError where configuration, environment and network do not fit."""
    spec = normalized_spec(spec, config.normalize_observations)
    agent = bind_sac(build_sac(config, spec, network))
    return with_normalized_samples(agent, spec, config.normalize_observations)


def bind_sac(sac: SAC) -> ReplayAgent:
    """Returns the agent of a bound SAC, for observations as they are."""
    sync = partial(sync_random_acting, sac.config.random_updates)
    return ReplayAgent(
        name="sac",
        init=partial(init, sac),
        initial_agent_state=sac.actor.initial_state,
        act=partial(act, sac),
        update=partial(update, sac),
        extras={},
        data=Replay(sac.config.replay, sequence_length=sac.config.n_step, sync_acting_params=sync),
    )


def build_sac(config: SACConfig, spec: EnvSpec, network: NetworkConfig) -> SAC:
    """Returns the networks and schedules; raises UserError as `make_sac` does."""
    validate_plain_network("SAC", network)
    actions = continuous_actions(spec)
    highest = actions.size * float(jnp.log(2.0))
    if config.target_entropy is not None and not float("-inf") < config.target_entropy < highest:
        raise UserError(
            f"{spec.env_id}: target_entropy must be finite and below {highest:.3f}, the entropy of uniform actions: got "
            f"{config.target_entropy}; None stands for {-actions.size}"
        )
    return SAC(
        config,
        actions,
        make_squashed_actor(network, spec, actions.size),
        make_critics(network, spec, actions.size, config.num_critics),
        -float(actions.size) if config.target_entropy is None else config.target_entropy,
        importance_exponent_schedule(config.replay, config.importance_sampling_exponent, config.total_updates),
        learning_rates(config, "actor", "critic", "temperature"),
    )


def optimizers(sac: SAC) -> dict[str, optax.GradientTransformationExtraArgs]:
    """Returns the optimizers of actor, critics and temperature; that of the temperature neither clips nor decays."""
    settings = sac.config.optimizer
    plain = dataclasses.replace(settings, max_grad_norm=None, adaptive_clip=None, weight_decay=0.0)
    return {
        name: make_optimizer(plain if name == "temperature" else settings, rate) for name, rate in sac.rates.items()
    }


def init(sac: SAC, key: Array) -> LearnerState:
    """Returns the initial learner state. `key` is consumed."""
    actor_key, critic_key = jax.random.split(key)
    actor, critic = sac.actor.init(actor_key), sac.critics.init(critic_key)
    log_temperature = jnp.log(jnp.float32(sac.config.init_temperature))
    learned = {"actor": actor, "critic": critic, "temperature": log_temperature}
    opt_state = {name: optimizer.init(learned[name]) for name, optimizer in optimizers(sac).items()}
    # Copied: the state is donated, and no buffer may occur in it twice.
    extra = SACExtra(critic, jax.tree.map(jnp.copy, critic), log_temperature, jnp.zeros((), jnp.int32))
    state = LearnerState({"actor": actor}, opt_state, jnp.zeros((), jnp.int32), extra)
    return sync_random_acting(sac.config.random_updates, state)


def act(
    sac: SAC,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Returns actions [B, ...]: samples of the policy, or in greedy mode its squashed mean."""
    if mode is Mode.GREEDY:
        gaussian = sac.actor.parameters(params["actor"], observation)
        return sac.actions.from_unit(jnp.tanh(gaussian.mean)), {}, agent_state
    keys = jax.vmap(jax.random.split)(keys)
    gaussian, noise, agent_state = sac.actor.explore(params["actor"], observation, agent_state, is_first, keys[:, 1])
    sampled, _ = squash(gaussian, noise)
    unit = jnp.where(params["acts_uniformly"], uniform_actions(keys[:, 0], sac.actions.size), sampled)
    return sac.actions.from_unit(unit), {}, agent_state


def update(sac: SAC, state: LearnerState, sample: Sample, key: Array) -> tuple[LearnerState, Metrics, Array]:
    """Returns the state after one gradient step, metrics, and the windows' priorities. `key` is consumed.

    The critics learn first (eq. 5), and their targets follow. Actor and temperature learn then, at every `policy_delay`-th step.
    Priorities are the mean absolute errors of the critics, in reward units; 0 of a window whose first step only resets.
    """
    target_key, actor_key = jax.random.split(key)
    batch = first_n_step_transitions(sample.trajectory, sac.config.discount, sac.config.n_step)
    batch = batch._replace(action=sac.actions.to_unit(batch.action))
    importance = importance_weights(sample.probability, batch.weight, sac.beta(state.num_updates))

    target = soft_targets(sac, state.params["actor"], state.extra, batch, target_key)
    loss = partial(critic_loss, sac.critics, batch=batch, target=target, importance=importance)
    state, error, metrics = update_critics(sac, state, loss)
    state, actor_metrics = update_actor_when_due(sac, state, batch, actor_key)
    metrics |= actor_metrics | {"value/target": weighted_mean(target, batch.weight)}
    return state, metrics, jnp.mean(jnp.abs(error), axis=0)


def update_critics(sac: SAC, state: LearnerState, loss: CriticLossFn) -> tuple[LearnerState, Array, Metrics]:
    """Returns the state after one gradient step of the critics and one step of their targets, the errors [E, N], and metrics."""
    extra: SACExtra = state.extra
    grads, (error, metrics) = jax.grad(loss, has_aux=True)(extra.critic)
    critic, critic_opt = descend(
        optimizers(sac)["critic"], grads, state.opt_state["critic"], extra.critic, state.num_updates
    )
    metrics |= {"gradient/critic_norm": optax.tree.norm(grads)}
    metrics |= current_values({"learning_rate": sac.rates["actor"]}, state.num_updates)
    extra = dataclasses.replace(
        extra,
        critic=critic,
        target_critic=polyak(extra.target_critic, critic, sac.config.tau),
        num_gradient_steps=extra.num_gradient_steps + 1,
    )
    state = dataclasses.replace(state, extra=extra, opt_state={**state.opt_state, "critic": critic_opt})
    return state, error, metrics


def update_actor_when_due(
    sac: SAC, state: LearnerState, batch: Transitions, key: Array
) -> tuple[LearnerState, Metrics]:
    """Returns the state after one step of the actor and the temperature if it is due, and metrics. `key` is consumed."""
    return step_when_due(
        partial(update_actor, sac, batch, key),
        lambda old: actor_loss(sac, old.params["actor"], old.extra.critic, old.extra.log_temperature, batch, key)[1],
        state,
        count=state.extra.num_gradient_steps,
        period=sac.config.policy_delay,
    )


def update_actor(sac: SAC, batch: Transitions, key: Array, state: LearnerState) -> tuple[LearnerState, Metrics]:
    """Returns the state after one gradient step of the actor and of the temperature, and metrics before it. Consumes `key`."""
    extra, actor, optimizer, opt_state = state.extra, state.params["actor"], optimizers(sac), dict(state.opt_state)
    grads, metrics = jax.grad(partial(actor_loss, sac), has_aux=True)(
        actor, extra.critic, extra.log_temperature, batch, key
    )
    actor, opt_state["actor"] = descend(optimizer["actor"], grads, opt_state["actor"], actor, state.num_updates)
    if sac.config.autotune_temperature:
        gradient = temperature_gradient(sac, extra.log_temperature, metrics["policy/entropy"])
        gradient = jnp.where(jnp.any(batch.weight > 0.0), gradient, 0.0)
        log_temperature, opt_state["temperature"] = descend(
            optimizer["temperature"], gradient, opt_state["temperature"], extra.log_temperature, state.num_updates
        )
        extra = dataclasses.replace(extra, log_temperature=log_temperature)
    return LearnerState({**state.params, "actor": actor}, opt_state, state.num_updates, extra), metrics


def sample_actions(sac: SAC, actor: Params, observation: Observation, key: Array) -> tuple[Array, Array]:
    """Returns actions [N, D] of the policy and their log-densities [N]. `key` is consumed."""
    gaussian = sac.actor.parameters(actor, observation)
    return squash(gaussian, jax.random.normal(key, gaussian.mean.shape))


def soft_targets(sac: SAC, actor: Params, extra: SACExtra, batch: Transitions, key: Array) -> Array:
    """Returns [N] float32: R + g^k (min Q'(o', a') - alpha log pi(a'|o')), a' from the newest policy (eq. 3). Consumes `key`."""
    action, log_prob = sample_actions(sac, actor, batch.next_observation, key)
    value = target_values(sac, extra, batch.next_observation, action, jax.random.fold_in(key, 1))
    return batch.reward + batch.discount * (value - jnp.exp(extra.log_temperature) * log_prob)


def target_values(sac: SAC, extra: SACExtra, observation: Observation, action: Array, key: Array) -> Array:
    """Returns [N] float32: min Q'(o, a) of the target critics, or of `num_target_critics` drawn ones. `key` is consumed."""
    target, count = extra.target_critic, sac.config.num_target_critics
    if count is not None:
        drawn = jax.random.choice(key, sac.config.num_critics, (count,), replace=False)
        target = jax.tree.map(lambda leaf: leaf[drawn], target)
    return jnp.min(sac.critics.values(target, observation, action), axis=0)


def actor_loss(
    sac: SAC, actor: Params, critic: Params, log_temperature: Array, batch: Transitions, key: Array
) -> tuple[Array, Metrics]:
    """Returns E[alpha log pi(a|o) - min Q(o, a)], differentiable through a = tanh(mean + std * noise) (eq. 9); and metrics.

    With `num_target_critics` the mean of all critics replaces the smallest value, as in REDQ.
    """
    action, log_prob = sample_actions(sac, actor, batch.observation, key)
    summarize = jnp.min if sac.config.num_target_critics is None else jnp.mean
    value = summarize(sac.critics.values(critic, batch.observation, action), axis=0)
    alpha = jnp.exp(log_temperature)
    loss = weighted_mean(alpha * log_prob - value, batch.weight)
    entropy = -weighted_mean(log_prob, batch.weight)
    metrics = {
        "loss/actor": loss,
        "loss/temperature": alpha * (entropy - sac.target_entropy),
        "policy/temperature": alpha,
        "policy/entropy": entropy,
    }
    return loss, metrics


def temperature_gradient(sac: SAC, log_temperature: Array, entropy: Array) -> Array:
    """Returns the gradient of J(alpha) = alpha (entropy - target) by log alpha (eq. 18): too little entropy raises alpha."""
    return jnp.exp(log_temperature) * (entropy - sac.target_entropy)
