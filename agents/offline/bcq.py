"""Batch-constrained Q-learning (BCQ). Source: Fujimoto et al. 2019 (arXiv:1812.02900), algorithm 1.

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
from agents.networks.action_generator import (
    LATENT_RANGE,
    ActionGenerator,
    Perturbation,
    make_action_generator,
    make_perturbation,
)
from agents.networks.config import NetworkConfig, validate_plain_network
from agents.networks.critics import CriticEnsemble, critic_loss, make_critics
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
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import shown_path


@dataclasses.dataclass(frozen=True)
class BCQConfig:
    """Hyper-parameters; the defaults are those of the paper and the authors' code.

    Attributes:
        replay: Sizes and rates of the replay buffer; of a dataset only the batch size counts.
        normalize_observations: Whether observations are normalized by the statistics of all samples.
        total_updates: Updates of the whole run; needed only by schedules.
        discount: g, per env step.
        tau: Step size of the target networks towards the learned ones.
        num_candidates: n: generated actions among which targets take the best.
        num_acting_candidates: The same for acting.
        perturbation_limit: Phi: largest change of an element of a generated action, in units of actions scaled to [-1, 1].
        pessimism: lambda: share of the smallest critic in values; the rest is that of the largest.
        latent_weight: Weight of the latents' divergence from the prior in the generator's loss.
        generator_hidden_sizes: Sizes of the layers of encoder and decoder.
        actor_learning_rate: Initial learning rate of the perturbation.
        critic_learning_rate: Initial learning rate of the critics.
        generator_learning_rate: Initial learning rate of the generator.
        learning_rate_schedule: Change of all learning rates over the run.
        optimizer: Settings of all optimizers, each with its own state.
        num_critics: E.
    """

    replay: ReplayConfig = dataclasses.field(default_factory=ReplayConfig)
    normalize_observations: bool = False
    total_updates: int = 0
    discount: float = 0.99
    tau: float = 0.005
    num_candidates: int = 10
    num_acting_candidates: int = 100
    perturbation_limit: float = 0.05
    pessimism: float = 0.75
    latent_weight: float = 0.5
    generator_hidden_sizes: tuple[int, ...] = (750, 750)
    actor_learning_rate: float = 1e-3
    critic_learning_rate: float = 1e-3
    generator_learning_rate: float = 1e-3
    learning_rate_schedule: ScheduleConfig = CONSTANT
    optimizer: OptimizerConfig = OptimizerConfig(epsilon=1e-8)
    num_critics: int = 2

    def __post_init__(self) -> None:
        complete(self)
        object.__setattr__(self, "generator_hidden_sizes", tuple(self.generator_hidden_sizes))
        validate.at_least_one(self, "num_critics", "num_candidates", "num_acting_candidates")
        validate.positive(self, "actor_learning_rate", "critic_learning_rate", "generator_learning_rate")
        validate.not_negative(self, "perturbation_limit", "latent_weight")
        validate.fraction(self, "discount", "pessimism")
        validate.fraction(self, "tau", above_zero=True)
        validate.uniform_replay(self, "BCQ")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BCQExtra:
    """Learner state of BCQ that acting does not need.

    Attributes:
        target_critic: Parameters, [E, ...] each leaf.
        target_actor: Parameters of the perturbation.
    """

    target_critic: Params
    target_actor: Params


class BCQ(NamedTuple):
    """BCQ, bound to its configuration and an environment's spec.

    Attributes:
        config: Hyper-parameters.
        actions: Map between actions and [-1, 1]^D.
        generator: Autoencoder of recorded actions.
        actor: The perturbation of generated actions.
        critics: The ensemble of critics.
        rates: Learning rates of "generator", "actor" and "critic" as functions of `num_updates`.
    """

    config: BCQConfig
    actions: ContinuousActions
    generator: ActionGenerator
    actor: Perturbation
    critics: CriticEnsemble
    rates: Schedules


@keeps_binding
def make_bcq(config: BCQConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """Returns a BCQ agent, for continuous actions; raises UserError where configuration, environment and network do not fit."""
    spec = normalized_spec(spec, config.normalize_observations)
    bcq = build_bcq(config, spec, network)
    agent = ReplayAgent(
        name="bcq",
        init=partial(init, bcq),
        initial_agent_state=lambda num_rows: (),
        act=partial(act, bcq),
        update=partial(update, bcq),
        extras={},
        data=Replay(config.replay, sequence_length=1),
    )
    return with_normalized_samples(agent, spec, config.normalize_observations)


def build_bcq(config: BCQConfig, spec: EnvSpec, network: NetworkConfig) -> BCQ:
    """Returns the networks and schedules; raises UserError as `make_bcq` does."""
    validate_plain_network("BCQ", network)
    if spec.critic_only:
        shown = shown_path("observation", spec.critic_only)
        raise UserError(
            f"{spec.env_id}: BCQ acts by the values of its critics: expected an observation without a part for critics only, got "
            f"{shown}; use SAC or TD3+BC"
        )
    actions = continuous_actions(spec)
    generator = dataclasses.replace(network, hidden_sizes=config.generator_hidden_sizes)
    return BCQ(
        config,
        actions,
        make_action_generator(generator, spec, actions.size),
        make_perturbation(network, spec, actions.size, config.perturbation_limit),
        make_critics(network, spec, actions.size, config.num_critics),
        learning_rates(config, "generator", "actor", "critic"),
    )


def init(bcq: BCQ, key: Array) -> LearnerState:
    """Returns the initial learner state. `key` is consumed."""
    generator_key, actor_key, critic_key = jax.random.split(key, 3)
    params = {
        "generator": bcq.generator.init(generator_key),
        "actor": bcq.actor.init(actor_key),
        "critic": bcq.critics.init(critic_key),
    }
    optimizers = make_optimizers(bcq.config.optimizer, bcq.rates)
    opt_state = {name: optimizer.init(params[name]) for name, optimizer in optimizers.items()}
    # Copied: the state is donated, and no buffer may occur in it twice.
    target = jax.tree.map(jnp.copy, params)
    return LearnerState(params, opt_state, jnp.zeros((), jnp.int32), BCQExtra(target["critic"], target["actor"]))


def act(
    bcq: BCQ,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Returns, in both modes, the generated actions [B, ...] that the first critic values most."""
    del is_first, mode
    shape = (bcq.config.num_acting_candidates, bcq.generator.latent_size)
    noise = jax.vmap(lambda key: jax.random.normal(key, shape), out_axes=1)(keys)
    candidates, repeated = generated(bcq, params["generator"], params["actor"], observation, noise)
    value = first_critic(bcq, params["critic"], repeated, candidates)
    best = jnp.argmax(value, axis=0)
    unit = jnp.take_along_axis(candidates, best[None, :, None], axis=0)[0]
    return bcq.actions.from_unit(unit), {}, agent_state


def generated(
    bcq: BCQ, generator: Params, actor: Params, observation: Observation, noise: Array
) -> tuple[Array, Observation]:
    """Returns K perturbed actions [K, N, D] that the decoder makes of standard normal `noise` [K, N, 2 D] and N observations.

    The second value is the observations, [K, N, ...] each leaf.
    """
    repeated = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (noise.shape[0], *leaf.shape)), observation)
    action = bcq.generator.decode(generator, repeated, jnp.clip(noise, *LATENT_RANGE))
    return bcq.actor.perturbed(actor, repeated, action), repeated


def first_critic(bcq: BCQ, critic: Params, observation: Observation, action: Array) -> Array:
    """Returns the values [K, N] of actions [K, N, D] by the first critic."""
    first = jax.tree.map(lambda leaf: leaf[:1], critic)
    return bcq.critics.values(first, observation, action)[0]


def update(bcq: BCQ, state: LearnerState, sample: Sample, key: Array) -> tuple[LearnerState, Metrics, Array]:
    """Returns the state after one gradient step of all networks, metrics, and the windows' priorities. `key` is consumed.

    The order is that of the authors' code: generator, critics, perturbation, targets. Priorities are the mean absolute errors of
    the critics, in reward units.
    """
    generator_key, target_key, actor_key = jax.random.split(key, 3)
    batch = first_n_step_transitions(sample.trajectory, bcq.config.discount, 1)
    batch = batch._replace(action=bcq.actions.to_unit(batch.action))
    extra: BCQExtra = state.extra
    params, opt_state, now, tau = dict(state.params), dict(state.opt_state), state.num_updates, bcq.config.tau
    optimizer = make_optimizers(bcq.config.optimizer, bcq.rates)

    def step(name: str, gradient: Params) -> None:
        params[name], opt_state[name] = descend(optimizer[name], gradient, opt_state[name], params[name], now)

    gradient, metrics = jax.grad(partial(generator_loss, bcq), has_aux=True)(params["generator"], batch, generator_key)
    step("generator", gradient)

    target = best_targets(bcq, params["generator"], extra, batch, target_key)
    gradient, (error, critic_metrics) = jax.grad(partial(critic_loss, bcq.critics), has_aux=True)(
        params["critic"], batch, target
    )
    step("critic", gradient)

    loss = partial(actor_loss, bcq, critic=params["critic"], generator=params["generator"], batch=batch, key=actor_key)
    gradient, actor_metrics = jax.grad(loss, has_aux=True)(params["actor"])
    step("actor", gradient)

    extra = BCQExtra(
        polyak(extra.target_critic, params["critic"], tau), polyak(extra.target_actor, params["actor"], tau)
    )
    metrics |= critic_metrics | actor_metrics | current_values({"learning_rate": bcq.rates["critic"]}, now)
    return LearnerState(params, opt_state, now, extra), metrics, jnp.mean(jnp.abs(error), axis=0)


def generator_loss(bcq: BCQ, generator: Params, batch: Transitions, key: Array) -> tuple[Array, Metrics]:
    """Returns E[mean_d (a~ - a)^2] + w E[mean_l KL(N(mean_l, std_l) | N(0, 1))], a~ the decoded action; and metrics.

    Consumes `key`.
    """
    mean, log_std = bcq.generator.encode(generator, batch.observation, batch.action)
    latent = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
    decoded = bcq.generator.decode(generator, batch.observation, latent)
    divergence = 0.5 * (jnp.square(mean) + jnp.exp(2.0 * log_std) - 1.0) - log_std
    distance = weighted_mean(jnp.mean(jnp.square(decoded - batch.action), axis=-1), batch.weight)
    divergence = weighted_mean(jnp.mean(divergence, axis=-1), batch.weight)
    loss = distance + bcq.config.latent_weight * divergence
    return loss, {"loss/generator": loss, "policy/distance": distance, "policy/divergence": divergence}


def best_targets(bcq: BCQ, generator: Params, extra: BCQExtra, batch: Transitions, key: Array) -> Array:
    """Returns [N] float32: r + g max_k [lambda min_j Q'_j(o', a_k) + (1 - lambda) max_j Q'_j(o', a_k)]. `key` is consumed.

    The a_k are generated at o' and changed by the target perturbation (eq. 13).
    """
    shape = (bcq.config.num_candidates, *batch.reward.shape, bcq.generator.latent_size)
    noise = jax.random.normal(key, shape)
    action, repeated = generated(bcq, generator, extra.target_actor, batch.next_observation, noise)
    value = bcq.critics.values(extra.target_critic, repeated, action)
    share = bcq.config.pessimism
    soft_minimum = share * jnp.min(value, axis=0) + (1.0 - share) * jnp.max(value, axis=0)
    return batch.reward + batch.discount * jnp.max(soft_minimum, axis=0)


def actor_loss(
    bcq: BCQ, actor: Params, *, critic: Params, generator: Params, batch: Transitions, key: Array
) -> tuple[Array, Metrics]:
    """Returns -E[Q_1(o, a + xi(o, a))] of one generated action each (eq. 12); and metrics. Consumes `key`."""
    noise = jax.random.normal(key, (1, *batch.reward.shape, bcq.generator.latent_size))
    action, repeated = generated(bcq, generator, actor, batch.observation, noise)
    loss = -weighted_mean(first_critic(bcq, critic, repeated, action)[0], batch.weight)
    return loss, {"loss/actor": loss}
