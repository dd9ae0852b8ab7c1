"""Stochastic MuZero: search in a learned model with outcomes of chance, for environments that are not deterministic.

Source: Antonoglou et al. 2022, "Planning in stochastic environments with a learned model" (ICLR). `docs/algorithms/muzero.md` lists
every deviation.
"""

import dataclasses
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
    Trajectory,
)
from agents.binding import keeps_binding
from agents.networks.config import NetworkConfig
from agents.networks.search_actions import SearchActions, absorbing_actions, make_search_actions
from agents.networks.stochastic_muzero import StochasticMuZeroNetwork, make_stochastic_muzero_network
from agents.ops import validate
from agents.ops.importance_weights import importance_exponent_schedule, importance_weights
from agents.ops.optimizers import OptimizerConfig, make_optimizer
from agents.ops.returns import weighted_mean
from agents.ops.schedules import CONSTANT, Schedule, ScheduleConfig, current_values, make_schedule, sync_scheduled
from agents.ops.target_update import descend_with_target, init_target
from agents.ops.two_hot import clamped_fraction, cross_entropy, num_atoms, two_hot, two_hot_mean
from agents.ops.unrolled_targets import UnrolledTargets, scale_gradient, unrolled_priorities, unrolled_targets
from agents.search.model import ILLEGAL, Latent, ModelStep, Root, SearchResult
from agents.search.puct import PUCTConfig
from agents.search.stochastic import Afterstate, stochastic_search
from agents.settings import complete
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec


@dataclasses.dataclass(frozen=True)
class StochasticMuZeroConfig:
    """Hyper-parameters.

    Attributes:
        replay: Sizes, rates and priorities of the replay buffer.
        puct: Settings of the search. Half of its simulations add states, half add afterstates.
        temperature: Temperature of the choice among visit counts while acting.
        temperature_schedule: Change of the temperature over the run.
        num_outcomes: C, outcomes of chance in the model.
        latent_size: D, numbers in a latent state.
        value_limit: Largest rescaled value and reward that networks represent: 20 stands for about 420, 300 for about 58,700.
        unroll_steps: K, steps of the model in a loss.
        n_step: Rewards of a value target before it bootstraps.
        discount: g, per env step.
        value_coef: Weight of the losses of values, of states and of afterstates.
        reward_coef: Weight of the loss of rewards.
        outcome_coef: Weight of the loss of the probabilities of outcomes.
        commitment_coef: Weight of the squared distance between the encoder's probabilities and the drawn outcome.
        target_update_period: Gradient steps between two copies to the target network, which bootstraps.
        total_updates: Trajectories of the whole run, for all schedules.
        learning_rate: Initial learning rate.
        learning_rate_schedule: Change of the learning rate over the run.
        optimizer: Settings of the optimizer.
        importance_sampling_exponent: beta of prioritized replay at the first update; 1 at the end.
    """

    replay: ReplayConfig = dataclasses.field(default_factory=lambda: ReplayConfig(gradient_steps_per_env_step=0.25))
    puct: PUCTConfig = dataclasses.field(default_factory=PUCTConfig)
    temperature: float = 1.0
    temperature_schedule: ScheduleConfig = CONSTANT
    num_outcomes: int = 32
    latent_size: int = 128
    value_limit: int = 300
    unroll_steps: int = 5
    n_step: int = 10
    discount: float = 0.997
    value_coef: float = 0.25
    reward_coef: float = 1.0
    outcome_coef: float = 1.0
    commitment_coef: float = 1.0
    target_update_period: int = 200
    total_updates: int = 0
    learning_rate: float = 1e-3
    learning_rate_schedule: ScheduleConfig = CONSTANT
    optimizer: OptimizerConfig = OptimizerConfig(weight_decay=1e-4, max_grad_norm=5.0)
    importance_sampling_exponent: float = 1.0

    def __post_init__(self) -> None:
        complete(self)
        validate.at_least_one(self, "num_outcomes", "latent_size", "value_limit", "unroll_steps", "n_step")
        validate.at_least_one(self, "target_update_period")
        validate.positive(self, "learning_rate", "temperature")
        validate.fraction(self, "discount", "importance_sampling_exponent")
        validate.not_negative(self, "value_coef", "reward_coef", "outcome_coef", "commitment_coef")


class StochasticMuZero(NamedTuple):
    """Stochastic MuZero, bound to its configuration and an environment's spec.

    Attributes:
        config: Hyper-parameters.
        net: Representation, afterstates, dynamics, prediction and encoder.
        actions: Actions among which nodes choose.
        optimizer: Optimizer of the networks.
        learning_rate: Learning rate as a function of `num_updates`.
        temperature: Temperature of acting as a function of `num_updates`.
        beta: Importance-sampling exponent as a function of `num_updates`.
    """

    config: StochasticMuZeroConfig
    net: StochasticMuZeroNetwork
    actions: SearchActions
    optimizer: optax.GradientTransformationExtraArgs
    learning_rate: optax.Schedule
    temperature: optax.Schedule
    beta: Schedule


@keeps_binding
def make_stochastic_muzero(config: StochasticMuZeroConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """Returns a Stochastic MuZero agent.

    Raises:
        UserError: If the action is not one Discrete number, the network is recurrent or does not fit, or a schedule needs the
            number of updates.
    """
    muzero = build_stochastic_muzero(config, spec, network)
    unroll = {"unroll_steps": config.unroll_steps, "n_step": config.n_step, "discount": config.discount}
    return ReplayAgent(
        name="stochastic_muzero",
        init=partial(init, muzero),
        initial_agent_state=lambda num_rows: (),
        act=partial(act, muzero),
        update=partial(update, muzero),
        extras={
            "search_policy": ArraySpec((muzero.actions.num_choices,), "float32"),
            "root_value": ArraySpec((), "float32"),
        },
        data=Replay(
            config.replay,
            config.unroll_steps + config.n_step,
            sync_acting_params=partial(sync_scheduled, "temperature", muzero.temperature),
            initial_priority=partial(unrolled_priorities, **unroll),
        ),
    )


def build_stochastic_muzero(config: StochasticMuZeroConfig, spec: EnvSpec, network: NetworkConfig) -> StochasticMuZero:
    """Returns networks, optimizer and schedules; raises UserError as `make_stochastic_muzero` does."""
    if not isinstance(spec.action, DiscreteSpec):
        raise UserError(f"{spec.env_id}: Stochastic MuZero needs one Discrete action: got {spec.action}; use MuZero")
    actions = make_search_actions(spec, spec.action.num_values)
    net = make_stochastic_muzero_network(
        network,
        spec,
        latent_size=config.latent_size,
        num_actions=actions.num_features,
        num_outcomes=config.num_outcomes,
        num_atoms=num_atoms(config.value_limit),
    )
    learning_rate = make_schedule(config.learning_rate_schedule, config.learning_rate, config.total_updates)
    return StochasticMuZero(
        config,
        net,
        actions,
        make_optimizer(config.optimizer, learning_rate),
        learning_rate,
        make_schedule(config.temperature_schedule, config.temperature, config.total_updates),
        importance_exponent_schedule(config.replay, config.importance_sampling_exponent, config.total_updates),
    )


def init(muzero: StochasticMuZero, key: Array) -> LearnerState:
    """Returns the initial learner state; the target network is a copy of the network. `key` is consumed."""
    network, zero = muzero.net.init(key), jnp.zeros((), jnp.int32)
    state = LearnerState({"network": network}, muzero.optimizer.init(network), zero, init_target(network))
    return sync_scheduled("temperature", muzero.temperature, state)


def act(
    muzero: StochasticMuZero,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Returns the actions [B] of a search from each observation; greedy mode searches without noise and takes the best."""
    del is_first
    explores = mode is Mode.SAMPLE
    temperature = params["temperature"] if explores else 0.0
    result = search(muzero, params["network"], observation, keys, temperature, noise=float(explores))
    return result.action, {"search_policy": result.policy, "root_value": result.value}, agent_state


def search(
    muzero: StochasticMuZero,
    params: Params,
    observation: Observation,
    keys: Array,
    temperature: float | Array,
    noise: float,
) -> SearchResult:
    """Returns a search from each observation [N]. `keys` [N] are consumed."""
    latent = muzero.net.represent(params, observation)
    prediction, legal = muzero.net.predict(params, latent), muzero.actions.legal(observation)
    logits = prediction.policy if legal is None else jnp.where(legal != 0, prediction.policy, ILLEGAL)
    return stochastic_search(
        partial(after_action, muzero),
        partial(after_chance, muzero),
        params,
        Root(logits, two_hot_mean(prediction.value), latent),
        keys,
        muzero.config.puct,
        temperature=temperature,
        noise=noise,
    )


def after_action(muzero: StochasticMuZero, params: Params, latent: Latent, action: Array, key: Array) -> Afterstate:
    """Returns the model's states after an action [N]."""
    del key
    after = muzero.net.decide(params, latent, muzero.actions.features(action))
    return Afterstate(after.outcome, two_hot_mean(after.value), after.latent)


def after_chance(muzero: StochasticMuZero, params: Params, latent: Latent, outcome: Array, key: Array) -> ModelStep:
    """Returns the model's steps after an outcome of chance [N]."""
    del key
    state, reward = muzero.net.advance(params, latent, jax.nn.one_hot(outcome, muzero.config.num_outcomes))
    prediction = muzero.net.predict(params, state)
    discount = jnp.full(outcome.shape, muzero.config.discount, jnp.float32)
    return ModelStep(two_hot_mean(reward), discount, prediction.policy, two_hot_mean(prediction.value), state)


def update(
    muzero: StochasticMuZero, state: LearnerState, sample: Sample, key: Array
) -> tuple[LearnerState, Metrics, Array]:
    """Returns the state after one gradient step, metrics, and the windows' priorities. `key` is consumed.

    Beyond the end of an episode the model is unrolled with random actions: a terminal state absorbs all of them.
    """
    window, (action_key, outcome_key) = sample.trajectory, jax.random.split(key)
    targets = value_targets(muzero, state.extra.target, window)
    window = absorbing_actions(muzero.actions, window, targets.acted, action_key)
    importance = importance_weights(sample.probability, targets.known[0], muzero.beta(state.num_updates))
    gradient = jax.grad(partial(loss, muzero), has_aux=True)
    grads, (metrics, priority) = gradient(state.params["network"], window, targets, importance, outcome_key)
    metrics |= current_values({"learning_rate": muzero.learning_rate}, state.num_updates)
    metrics["gradient/norm"] = optax.tree.norm(grads)
    state = descend_with_target(muzero.optimizer, grads, state, muzero.config.target_update_period)
    return state, metrics, priority


def value_targets(muzero: StochasticMuZero, target: Params, window: Trajectory) -> UnrolledTargets:
    """Returns the targets of K + 1 states, with bootstrap values of the target network."""
    config, net = muzero.config, muzero.net
    bootstrap = two_hot_mean(net.predict(target, net.represent(target, window.observation)).value)
    return unrolled_targets(
        window, bootstrap, unroll_steps=config.unroll_steps, n_step=config.n_step, discount=config.discount
    )


def loss(
    muzero: StochasticMuZero,
    params: Params,
    window: Trajectory,
    targets: UnrolledTargets,
    importance: Array,
    key: Array,
) -> tuple[Array, tuple[Metrics, Array]]:
    """Returns the mean weighted loss of the model unrolled for K steps, metrics, and the priorities [N] (equations 5 to 7).

    The losses of unrolled states are divided by K, and the gradient into each step of the model is halved, as in MuZero. `key` is
    consumed.
    """
    config, net, depth = muzero.config, muzero.net, muzero.config.unroll_steps
    limit, actions = config.value_limit, muzero.actions.features(window.action)
    probabilities, outcomes = encoded_outcomes(muzero, params, window, targets.acted[:depth], key)
    state = net.represent(params, jax.tree.map(lambda leaf: leaf[0], window.observation))
    names = ("policy", "value", "reward", "afterstate_value", "outcome", "commitment")
    losses = {name: jnp.zeros_like(importance) for name in names}
    first_value = losses["value"]
    for k in range(depth + 1):
        share = 1.0 if k == 0 else 1.0 / depth
        prediction, value = net.predict(params, state), two_hot(targets.value[k], limit)
        losses["value"] += share * targets.known[k] * cross_entropy(prediction.value, value)
        policy_loss = cross_entropy(prediction.policy, window.extras["search_policy"][k])
        losses["policy"] += share * targets.acted[k] * policy_loss
        if k == 0:
            first_value = jax.lax.stop_gradient(two_hot_mean(prediction.value))
        if k < depth:
            known, acted, chosen = targets.known[k] / depth, targets.acted[k] / depth, outcomes[k]
            after = net.decide(params, scale_gradient(state, 0.5), actions[k])
            losses["afterstate_value"] += known * cross_entropy(after.value, value)
            losses["outcome"] += acted * cross_entropy(after.outcome, jax.lax.stop_gradient(chosen))
            distance = jnp.sum(jnp.square(jax.lax.stop_gradient(chosen) - probabilities[k]), axis=-1)
            losses["commitment"] += acted * distance
            state, reward = net.advance(params, after.latent, chosen)
            losses["reward"] += known * cross_entropy(reward, two_hot(targets.reward[k], limit))
    total = losses["policy"] + config.value_coef * (losses["value"] + losses["afterstate_value"])
    total += config.reward_coef * losses["reward"] + config.outcome_coef * losses["outcome"]
    total += config.commitment_coef * losses["commitment"]
    mean = partial(weighted_mean, weight=targets.known[0])
    priority = jnp.abs(first_value - targets.value[0]) * targets.known[0]
    metrics = {f"loss/{name}": mean(part) for name, part in losses.items()}
    metrics["loss/total"] = mean(total * importance)
    metrics["model/outcomes"] = num_used(outcomes, targets.acted[:depth])
    metrics |= {
        "value/mean": mean(first_value),
        "value/target": mean(targets.value[0]),
        "value/clamped_fraction": clamped_fraction(targets, limit),
        "replay/priority": mean(priority),
    }
    return metrics["loss/total"], (metrics, priority)


def encoded_outcomes(
    muzero: StochasticMuZero, params: Params, window: Trajectory, acted: Array, key: Array
) -> tuple[Array, Array]:
    """Returns the encoder's probabilities [K, N, C] of the first K steps, and outcomes [K, N, C] drawn from them, one-hot.

    The gradient passes an outcome as if it were the probabilities (straight-through estimator), but not where `acted` [K, N] is
    0. Source: Jang et al. 2017 (arXiv:1611.01144), at temperature 1. The outcome with the largest score, as in the paper, soon
    was the same one for all observations. `key` is consumed.
    """
    steps = acted.shape[0]
    before = jax.tree.map(lambda leaf: leaf[:steps], window.observation)
    after = jax.tree.map(lambda leaf: leaf[1 : steps + 1], window.observation)
    scores = muzero.net.encode(params, before, after)
    probabilities = jax.nn.softmax(scores)
    drawn = jax.nn.one_hot(jax.random.categorical(key, scores), muzero.config.num_outcomes)
    through = probabilities - jax.lax.stop_gradient(probabilities)
    return probabilities, drawn + jnp.where(acted[..., None] > 0, through, 0.0)


def num_used(outcomes: Array, acted: Array) -> Array:
    """Returns the number of outcomes that occur in one-hot outcomes [K, N, C] where `acted` [K, N] is 1."""
    return jnp.sum(jnp.any((outcomes > 0.5) & (acted[..., None] > 0), axis=(0, 1))).astype(jnp.float32)
