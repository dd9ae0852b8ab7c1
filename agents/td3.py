"""Twin delayed deep deterministic policy gradients (TD3). Source: Fujimoto et al. 2018 (arXiv:1802.09477), algorithm 1.

`docs/algorithms/td3.md` lists the equations and every deviation.
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
from agents.networks.continuous_actors import DeterministicActor, make_deterministic_actor
from agents.networks.critics import CriticEnsemble, critic_loss, make_critics
from agents.networks.observation_scale import normalized_spec
from agents.ops import validate
from agents.ops.action_scaling import (
    ContinuousActions,
    continuous_actions,
    standard_normal,
    sync_random_acting,
    uniform_actions,
)
from agents.ops.gradient_descent import descend, step_when_due
from agents.ops.importance_weights import importance_exponent_schedule, importance_weights
from agents.ops.n_step import Transitions, first_n_step_transitions
from agents.ops.optimizers import OptimizerConfig, make_optimizer, make_optimizers
from agents.ops.returns import weighted_mean
from agents.ops.schedules import CONSTANT, Schedule, ScheduleConfig, Schedules, current_values, learning_rates
from agents.ops.target_update import polyak
from agents.settings import complete
from agents.transforms.normalized_samples import with_normalized_samples
from envpool_bridge.spec.specs import EnvSpec

ActorLossFn = Callable[[Params, Params, Transitions], tuple[Array, Metrics]]
"""Maps (actor, critic, batch) to the loss of the actor and metrics."""

DEFAULT_REPLAY = ReplayConfig(capacity=1_000_000, batch_size=256, min_size=10_000, gradient_steps_per_env_step=1.0)
"""One gradient step on 256 transitions per env step after the first 10,000, from the newest million."""


@dataclasses.dataclass(frozen=True)
class TD3Config:
    """Hyper-parameters; the defaults are those of the authors' code, but for `replay.min_size` (25,000 there).

    Noise is in units of actions scaled to [-1, 1].

    Attributes:
        replay: Sizes, rates and priorities of the replay buffer.
        normalize_observations: Whether observations are normalized by the statistics of all samples.
        total_updates: Trajectories of the whole run; needed only by schedules, and by priorities, whose correction grows.
        discount: g, per env step.
        n_step: Rewards of a return before it bootstraps; off-policy if more than 1.
        tau: Step size of the target networks towards the learned ones.
        actor_learning_rate: Initial learning rate of the actor.
        critic_learning_rate: Initial learning rate of the critics.
        learning_rate_schedule: Change of all learning rates over the run.
        optimizer: Settings of all optimizers, each with its own state.
        random_updates: Trajectories collected by uniformly random actions. None: all before the first gradient step.
        importance_sampling_exponent: beta of prioritized replay at the first update; it grows to 1 over the run.
        num_critics: E; targets use the smallest of their values.
        exploration_noise: Standard deviation of the Gaussian noise on actions during training.
        target_noise: Standard deviation of the Gaussian noise on target actions.
        target_noise_clip: Largest absolute value of the noise on target actions.
        policy_delay: Critic steps per step of the actor and of all target networks.
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
    exploration_noise: float = 0.1
    target_noise: float = 0.2
    target_noise_clip: float = 0.5
    policy_delay: int = 2

    def __post_init__(self) -> None:
        complete(self)
        validate.at_least_one(self, "n_step", "num_critics", "policy_delay")
        validate.positive(self, "actor_learning_rate", "critic_learning_rate")
        validate.positive(self, "target_noise_clip")
        validate.not_negative(self, "exploration_noise", "target_noise")
        validate.fraction(self, "discount", "importance_sampling_exponent")
        validate.fraction(self, "tau", above_zero=True)
        validate.random_updates(self)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TD3Extra:
    """Learner state of TD3 apart from the actor; acting does not need it.

    Attributes:
        critic: Parameters, [E, ...] each leaf.
        target_critic: Parameters, [E, ...] each leaf.
        target_actor: Parameters.
        num_gradient_steps: int32 scalar, gradient steps of the critics taken so far.
    """

    critic: Params
    target_critic: Params
    target_actor: Params
    num_gradient_steps: Array


class TD3(NamedTuple):
    """TD3 or DDPG, bound to its configuration and an environment's spec.

    Attributes:
        config: Hyper-parameters.
        actions: Map between actions and [-1, 1]^D.
        actor: The deterministic policy.
        critics: The ensemble of critics.
        beta: Importance-sampling exponent as a function of `num_updates`.
        rates: Learning rates of "actor" and "critic" as functions of `num_updates`.
    """

    config: TD3Config
    actions: ContinuousActions
    actor: DeterministicActor
    critics: CriticEnsemble
    beta: Schedule
    rates: Schedules


@keeps_binding
def make_td3(config: TD3Config, spec: EnvSpec, network: NetworkConfig, name: str = "td3") -> ReplayAgent:
    """Returns a TD3 agent.

    Args:
        config: Hyper-parameters.
        spec: Environment.
        network: Network of actor and critics.
        name: Name of the algorithm, for the agent and for messages.

    Raises:
        UserError: Configuration, environment and network do not fit.
    """
    spec = normalized_spec(spec, config.normalize_observations)
    agent = bind_td3(build_td3(config, spec, network, name), name)
    return with_normalized_samples(agent, spec, config.normalize_observations)


def bind_td3(td3: TD3, name: str) -> ReplayAgent:
    """Returns the agent of a bound TD3, for observations as they are."""
    sync = partial(sync_random_acting, td3.config.random_updates)
    return ReplayAgent(
        name=name,
        init=partial(init, td3),
        initial_agent_state=lambda num_rows: (),
        act=partial(act, td3),
        update=partial(update, td3),
        extras={},
        data=Replay(td3.config.replay, sequence_length=td3.config.n_step, sync_acting_params=sync),
    )


def build_td3(config: TD3Config, spec: EnvSpec, network: NetworkConfig, name: str = "td3") -> TD3:
    """Returns the networks and schedules; raises UserError as `make_td3` does."""
    validate_plain_network(name.upper(), network)
    actions = continuous_actions(spec)
    return TD3(
        config,
        actions,
        make_deterministic_actor(network, spec, actions.size),
        make_critics(network, spec, actions.size, config.num_critics),
        importance_exponent_schedule(config.replay, config.importance_sampling_exponent, config.total_updates),
        learning_rates(config, "actor", "critic"),
    )


def init(td3: TD3, key: Array) -> LearnerState:
    """Returns the initial learner state. `key` is consumed."""
    actor_key, critic_key = jax.random.split(key)
    learned = {"actor": td3.actor.init(actor_key), "critic": td3.critics.init(critic_key)}
    optimizers = make_optimizers(td3.config.optimizer, td3.rates)
    opt_state = {name: optimizer.init(learned[name]) for name, optimizer in optimizers.items()}
    # Copied: the state is donated, and no buffer may occur in it twice.
    target = jax.tree.map(jnp.copy, learned)
    extra = TD3Extra(learned["critic"], target["critic"], target["actor"], jnp.zeros((), jnp.int32))
    state = LearnerState({"actor": learned["actor"]}, opt_state, jnp.zeros((), jnp.int32), extra)
    return sync_random_acting(td3.config.random_updates, state)


def act(
    td3: TD3,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Returns actions [B, ...] of the policy, with noise unless in greedy mode."""
    del is_first
    unit = td3.actor.action(params["actor"], observation)
    if mode is Mode.SAMPLE:
        keys = jax.vmap(jax.random.split)(keys)
        noise = standard_normal(keys[:, 1], td3.actions.size)
        noisy = jnp.clip(unit + td3.config.exploration_noise * noise, -1.0, 1.0)
        unit = jnp.where(params["acts_uniformly"], uniform_actions(keys[:, 0], td3.actions.size), noisy)
    return td3.actions.from_unit(unit), {}, agent_state


def update(td3: TD3, state: LearnerState, sample: Sample, key: Array) -> tuple[LearnerState, Metrics, Array]:
    """Returns the state after one gradient step, metrics, and the windows' priorities. `key` is consumed.

    The critics learn at every step; the actor learns and all targets follow at every `policy_delay`-th step. Priorities are the
    mean absolute errors of the critics, in reward units; 0 of a window whose first step only resets.
    """
    target_key, _ = jax.random.split(key)
    batch = first_n_step_transitions(sample.trajectory, td3.config.discount, td3.config.n_step)
    batch = batch._replace(action=td3.actions.to_unit(batch.action))
    importance = importance_weights(sample.probability, batch.weight, td3.beta(state.num_updates))

    target = smoothed_targets(td3, state.extra, batch, target_key)
    state, error, metrics = update_critic(td3, state, batch, target, importance)
    state, actor_metrics = update_when_due(td3, state, batch, partial(actor_loss, td3))
    return state, metrics | actor_metrics, jnp.mean(jnp.abs(error), axis=0)


def update_critic(
    td3: TD3, state: LearnerState, batch: Transitions, target: Array, importance: Array
) -> tuple[LearnerState, Array, Metrics]:
    """Returns the state after one gradient step of the critics, their errors [E, N], and metrics."""
    extra: TD3Extra = state.extra
    gradient = jax.grad(partial(critic_loss, td3.critics), has_aux=True)
    grads, (error, metrics) = gradient(extra.critic, batch, target, importance)
    optimizer = make_optimizer(td3.config.optimizer, td3.rates["critic"])
    critic, critic_opt = descend(optimizer, grads, state.opt_state["critic"], extra.critic, state.num_updates)
    metrics |= {"value/target": weighted_mean(target, batch.weight), "gradient/critic_norm": optax.tree.norm(grads)}
    metrics |= current_values({"learning_rate": td3.rates["actor"]}, state.num_updates)
    extra = dataclasses.replace(extra, critic=critic, num_gradient_steps=extra.num_gradient_steps + 1)
    state = dataclasses.replace(state, extra=extra, opt_state={**state.opt_state, "critic": critic_opt})
    return state, error, metrics


def update_when_due(
    td3: TD3, state: LearnerState, batch: Transitions, loss: ActorLossFn
) -> tuple[LearnerState, Metrics]:
    """Returns the state after one step of the actor and all targets if it is due, and metrics."""
    return step_when_due(
        partial(update_actor_and_targets, td3, batch, loss),
        lambda old: loss(old.params["actor"], old.extra.critic, batch)[1],
        state,
        count=state.extra.num_gradient_steps,
        period=td3.config.policy_delay,
    )


def update_actor_and_targets(
    td3: TD3, batch: Transitions, loss: ActorLossFn, state: LearnerState
) -> tuple[LearnerState, Metrics]:
    """Returns the state after one gradient step of the actor and one step of all targets; and metrics before the step."""
    extra, actor, tau = state.extra, state.params["actor"], td3.config.tau
    grads, metrics = jax.grad(loss, has_aux=True)(actor, extra.critic, batch)
    optimizer = make_optimizer(td3.config.optimizer, td3.rates["actor"])
    actor, actor_opt = descend(optimizer, grads, state.opt_state["actor"], actor, state.num_updates)
    extra = dataclasses.replace(
        extra,
        target_critic=polyak(extra.target_critic, extra.critic, tau),
        target_actor=polyak(extra.target_actor, actor, tau),
    )
    opt_state = {**state.opt_state, "actor": actor_opt}
    return LearnerState({**state.params, "actor": actor}, opt_state, state.num_updates, extra), metrics


def smoothed_targets(td3: TD3, extra: TD3Extra, batch: Transitions, key: Array) -> Array:
    """Returns [N] float32: R + g^k min Q'(o', mu'(o') + clipped noise). `key` is consumed."""
    action = smoothed_actions(td3, extra.target_actor, batch.next_observation, key)
    value = jnp.min(td3.critics.values(extra.target_critic, batch.next_observation, action), axis=0)
    return batch.reward + batch.discount * value


def smoothed_actions(td3: TD3, target_actor: Params, observation: Observation, key: Array) -> Array:
    """Returns the target actor's actions [N, D] with clipped noise (target policy smoothing, section 5.3). Consumes `key`."""
    action = td3.actor.action(target_actor, observation)
    if td3.config.target_noise > 0.0:
        clip = td3.config.target_noise_clip
        noise = jnp.clip(td3.config.target_noise * jax.random.normal(key, action.shape), -clip, clip)
        action = jnp.clip(action + noise, -1.0, 1.0)
    return action


def actor_loss(td3: TD3, actor: Params, critic: Params, batch: Transitions) -> tuple[Array, Metrics]:
    """Returns -E[Q_1(o, mu(o))], differentiable through the action; and metrics."""
    first = jax.tree.map(lambda leaf: leaf[:1], critic)
    action = td3.actor.action(actor, batch.observation)
    loss = -weighted_mean(td3.critics.values(first, batch.observation, action)[0], batch.weight)
    is_saturated = jnp.abs(action) > 0.99
    saturated = weighted_mean(jnp.mean(is_saturated, axis=-1, dtype=jnp.float32), batch.weight)
    return loss, {"loss/actor": loss, "policy/saturated_fraction": saturated}
