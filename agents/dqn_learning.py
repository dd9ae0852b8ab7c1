"""What DQN and R2D2 share: the first state, acting, one optimizer step, and what a new version changes."""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

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
    RefreshFn,
    Sample,
    Trajectory,
)
from agents.dqn_config import DQNConfig
from agents.networks.config import NetworkConfig
from agents.networks.q_network import QNetwork, QOptions, make_q_network
from agents.ops import schedules
from agents.ops.epsilon_greedy import Schedule, epsilon_greedy, epsilon_schedule, greedy, ladder_exponents
from agents.ops.importance_weights import importance_exponent, importance_weights
from agents.ops.n_step import NStep, at_positions, n_step
from agents.ops.target_update import periodic
from agents.ops.value_distributions import ValueDistribution
from envpool_bridge.spec.specs import ArraySpec, EnvSpec

RECORDED = {"value": ArraySpec((), "float32"), "max_value": ArraySpec((), "float32")}
"""What `act` records for first priorities: the value of the action it took, and the highest of a legal one."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DQNExtra:
    """What the learner carries beside parameters.

    Attributes:
        target: parameters of the target network.
        num_gradient_steps: int32 scalar, done so far.
    """

    target: Params
    num_gradient_steps: Array


class DQNParts(NamedTuple):
    """An agent of the family, bound to its configuration and an environment's spec.

    Attributes:
        config: of the agent.
        net: action values.
        values: what the network's outputs mean.
        optimizer: steps of length 1, which `learning_rate` scales.
        epsilon: exploration, of `num_updates`.
        learning_rate: of `num_updates`.
        beta: importance exponent, of `num_updates`.
    """

    config: DQNConfig
    net: QNetwork
    values: ValueDistribution
    optimizer: optax.GradientTransformation
    epsilon: Schedule
    learning_rate: optax.Schedule
    beta: Schedule


def make_parts(config: DQNConfig, spec: EnvSpec, network: NetworkConfig) -> DQNParts:
    """Raises UserError where configuration, spec and network do not fit."""
    values = config.value_distribution()
    options = QOptions(values.num_outputs, config.dueling, config.noisy_sigma if config.noisy else None)
    clip = optax.identity() if config.max_grad_norm is None else optax.clip_by_global_norm(config.max_grad_norm)
    # Drawn evenly, windows need no weights, and beta no schedule.
    beta = (
        importance_exponent(config.importance_exponent, config.total_updates)
        if config.is_prioritised
        else jnp.zeros_like
    )
    return DQNParts(
        config=config,
        net=make_q_network(network, spec, options),
        values=values,
        optimizer=optax.chain(clip, optax.scale_by_adam(eps=config.adam_epsilon)),
        epsilon=epsilon_schedule(config.exploration, config.total_updates),
        learning_rate=schedules.make_schedule(
            config.learning_rate_schedule, config.learning_rate, config.total_updates
        ),
        beta=beta,
    )


def init(parts: DQNParts, key: Array) -> LearnerState:
    """First learner state; the target network begins as a copy. `key` is consumed."""
    network = parts.net.init(key)
    zero = jnp.zeros((), jnp.int32)
    # Copied: a state is donated, and no buffer may be in it twice.
    extra = DQNExtra(jax.tree.map(jnp.copy, network), jnp.zeros((), jnp.int32))
    return LearnerState(_acting_params(parts, network, zero), parts.optimizer.init(network), zero, extra)


def make_refresh(parts: DQNParts) -> RefreshFn:
    """Puts the exploration rate of the new version into what acts."""

    def refresh(state: LearnerState) -> LearnerState:
        params = _acting_params(parts, state.params["network"], state.num_updates)
        return dataclasses.replace(state, params=params)

    return refresh


def _acting_params(parts: DQNParts, network: Params, num_updates: Array) -> Params:
    return {"network": network, "epsilon": parts.epsilon(num_updates)}


def initial_agent_state(parts: DQNParts, num_rows: int) -> AgentState:
    """The network's state; with a ladder of exploration, beside each row's exponent, which stays."""
    state = parts.net.initial_state(num_rows)
    if not parts.config.exploration.ladder:
        return state
    return {"network": state, "exponent": ladder_exponents(parts.config.exploration.ladder, num_rows)}


def network_state(parts: DQNParts, agent_state: AgentState) -> AgentState:
    """The network's part of the agent's state."""
    return agent_state["network"] if parts.config.exploration.ladder else agent_state


def act(
    parts: DQNParts,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Epsilon-greedy actions [B] among the legal ones; greedy ones use the mean weights of noisy layers, and no epsilon."""
    net, config = parts.net, parts.config
    noise_keys, choice_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    noise = noise_keys if config.noisy and mode is Mode.SAMPLE else None
    state = network_state(parts, agent_state)
    outputs, state = net.step(params["network"], observation, state, is_first, noise)
    value, legal = parts.values.mean(outputs), net.legal(observation)
    epsilon = params["epsilon"]
    if config.exploration.ladder:
        epsilon = jnp.power(epsilon, agent_state["exponent"])
        state = {"network": state, "exponent": agent_state["exponent"]}
    action = epsilon_greedy(value, legal, epsilon, choice_keys) if mode is Mode.SAMPLE else greedy(value, legal)
    extras: dict[str, Array] = {}
    if config.initial_priorities == "recorded":
        extras = {"value": of_action(value, action), "max_value": of_action(value, greedy(value, legal))}
    return action, extras, state


def of_action(x: Array, action: Array) -> Array:
    """[...] or [..., K] of `action` [...] int32, from [..., A] or [..., A, K]."""
    axis = action.ndim
    # A one-hot product, not a gather: on CPU its gradient is a plain matrix instead of a scatter.
    chosen = action[..., None] == jnp.arange(x.shape[axis])
    return jnp.sum(jnp.where(chosen.reshape(chosen.shape + (1,) * (x.ndim - axis - 1)), x, 0.0), axis=axis)


def returns_of(config: DQNConfig, steps: Trajectory) -> NStep:
    """Sums of up to `num_steps` clipped rewards from each step."""
    reward = steps.reward
    if config.reward_clip is not None:
        reward = jnp.clip(reward, -config.reward_clip, config.reward_clip)
    return n_step(
        reward,
        steps.terminated,
        steps.truncated,
        steps.valid,
        discount=config.discount,
        num_steps=config.num_steps,
    )


def followed(parts: DQNParts, observation: Observation, online: Array, target: Array) -> Array:
    """Target outputs [..., K] of the best legal action, as the online network sees it (double) or the target network.

    Args:
        parts: of the agent.
        observation: [..., *leaf].
        online: [..., A, K] outputs of the online network there; not looked at without `double`.
        target: [..., A, K] of the target network.
    """
    judge = online if parts.config.double else target
    best = greedy(parts.values.mean(judge), parts.net.legal(observation))
    return jax.lax.stop_gradient(of_action(target, best))


def sample_weights(parts: DQNParts, state: LearnerState, sample: Sample) -> Array:
    """[N] float32 importance weights; all 1 of windows that are drawn evenly."""
    if not parts.config.is_prioritised:
        return jnp.ones_like(sample.probability)
    return importance_weights(sample.probability, sample.num_windows, parts.beta(state.num_updates))


def apply_gradient(
    parts: DQNParts, state: LearnerState, grads: Params, metrics: Metrics
) -> tuple[LearnerState, Metrics]:
    """The state after one optimizer step, with the target network of its number; and metrics of the step."""
    extra: DQNExtra = state.extra
    directions, opt_state = parts.optimizer.update(grads, state.opt_state)
    rate = parts.learning_rate(state.num_updates)
    network = jax.tree.map(lambda old, direction: old - rate * direction, state.params["network"], directions)
    count = extra.num_gradient_steps + 1
    target = periodic(extra.target, network, count, parts.config.target_period)
    state = dataclasses.replace(
        state, params={**state.params, "network": network}, opt_state=opt_state, extra=DQNExtra(target, count)
    )
    rates = {"learning_rate": rate, "exploration/epsilon": state.params["epsilon"]}
    as_metrics = {name: jnp.asarray(value, jnp.float32) for name, value in rates.items()}
    return state, metrics | as_metrics | {"gradient/norm": optax.tree.norm(grads)}


def recorded_errors(parts: DQNParts, steps: Trajectory) -> Array:
    """[S, B] float32 absolute temporal differences of S steps, from the values that acting recorded; 0 where not valid.

    The value after the last step has not been recorded: there, that of the last observation stands for it.
    """
    found = returns_of(parts.config, steps)
    position = jnp.minimum(found.position, steps.reward.shape[0] - 1)
    following = at_positions(steps.extras["max_value"], position)
    error = parts.values.backup(found.reward, found.discount, following) - steps.extras["value"]
    return jnp.where(steps.valid, jnp.abs(error), 0.0)


def bound(parts: DQNParts) -> dict[str, Any]:
    """The functions of a ReplayAgent that the family shares, by name."""
    return {
        "init": partial(init, parts),
        "initial_agent_state": partial(initial_agent_state, parts),
        "act": partial(act, parts),
        "extras": RECORDED if parts.config.initial_priorities == "recorded" else {},
    }
