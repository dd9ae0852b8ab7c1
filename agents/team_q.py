"""Q-learning of a team: its value is mixed from its agents' values, which each agent maximises alone. Pure functions.

What VDN (`agents.vdn`) and QMIX (`agents.qmix`) share, which differ in how values are mixed. See `docs/algorithms/qmix.md`.
"""

import dataclasses
from functools import partial
from typing import Protocol

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
from agents.networks.config import NetworkConfig
from agents.networks.mixer import Mixer
from agents.networks.team_values import TeamValues, make_team_values
from agents.ops import returns
from agents.ops.epsilon_greedy import Schedule, epsilon_greedy, epsilon_schedule, greedy
from agents.ops.importance_weights import importance_exponent, importance_weights
from agents.ops.target_update import periodic, polyak
from agents.ops.team_targets import team_steps, team_targets
from agents.team_q_config import TeamQConfig
from envpool_bridge.spec.specs import EnvSpec


class WeighFn(Protocol):
    """Importance weights [N] float32 of a sample's windows at version `num_updates`."""

    def __call__(self, sample: Sample, num_updates: Array, /) -> Array: ...


_NETWORKS = ("agents", "mixer")
_PRIORITY_OF_LARGEST = 0.9  # eta of Kapturowski et al. 2019, section 2.3


def make_team_q(name: str, config: TeamQConfig, spec: EnvSpec, network: NetworkConfig, mixer: Mixer) -> ReplayAgent:
    """The agent of this name, whose values `mixer` mixes.

    Raises:
        UserError: configuration, environment and network do not fit.
    """
    net = make_team_values(network, spec, mixer, shared=config.share_parameters)
    epsilon = epsilon_schedule(config.exploration, config.total_updates)
    weigh = make_weigh(config.replay, config.importance_exponent, config.total_updates)
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm), optax.adam(config.learning_rate, eps=config.adam_epsilon)
    )
    return ReplayAgent(
        name=name,
        init=partial(init, net, optimizer, epsilon),
        initial_agent_state=net.initial_state,
        act=partial(act, net),
        update=partial(update, config, net, spec.rows_per_env, optimizer, weigh),
        extras={},
        data=Replay(
            config.replay,
            config.window,
            config.begins,
            config.period,
            spec.rows_per_env,
            refresh=partial(refresh, epsilon),
        ),
    )


def init(net: TeamValues, optimizer: optax.GradientTransformation, epsilon: Schedule, key: Array) -> LearnerState:
    """First learner state; `extra` is the target network and the number of gradient steps (int32 scalar). `key` is consumed."""
    params = net.init(key)
    # A copy: what a learner state carries may be donated, and no array twice.
    extra = {"target": jax.tree.map(jnp.copy, params), "gradient_steps": jnp.zeros((), jnp.int32)}
    state = LearnerState(params, optimizer.init(params), jnp.zeros((), jnp.int32), extra)
    return refresh(epsilon, state)


def refresh(epsilon: Schedule, state: LearnerState) -> LearnerState:
    """Puts the exploration rate of this version into the parameters."""
    return dataclasses.replace(state, params=state.params | {"epsilon": epsilon(state.num_updates)})


def act(
    net: TeamValues,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Actions of [B, ...] observations of whole environments, each row's by its own alone."""
    one_step = jax.tree.map(lambda leaf: leaf[None], (observation, is_first))
    values, agent_state = net.unroll(params, one_step[0], agent_state, one_step[1])
    legal = net.legal(observation)
    if mode is Mode.GREEDY:
        return greedy(values[0], legal), {}, agent_state
    return epsilon_greedy(values[0], legal, params["epsilon"], keys), {}, agent_state


def make_weigh(replay: ReplayConfig, initial: float, total_updates: int) -> WeighFn:
    """How windows are weighed: by their probabilities where those differ, else all alike.

    Args:
        replay: whether there are priorities.
        initial: beta at the start, which grows to 1 over the run.
        total_updates: trajectories of the whole run.

    Raises:
        UserError: beta is to grow over a run of unknown length.
    """
    if not replay.priority_exponent:
        return lambda sample, num_updates: jnp.ones_like(sample.probability)
    exponent = importance_exponent(initial, total_updates)
    return lambda sample, num_updates: importance_weights(sample.probability, sample.num_windows, exponent(num_updates))


def update(
    config: TeamQConfig,
    net: TeamValues,
    num_agents: int,
    optimizer: optax.GradientTransformation,
    weigh: WeighFn,
    state: LearnerState,
    sample: Sample,
    key: Array,
) -> tuple[LearnerState, Metrics, Array]:
    """One gradient step; priorities are of each window's absolute errors, 0.9 of the largest and 0.1 of their mean."""
    del key
    online = {name: state.params[name] for name in _NETWORKS}
    weight = weigh(sample, state.num_updates)
    grads, (metrics, priorities) = jax.grad(partial(loss, config, net, num_agents), has_aux=True)(
        online, state.extra["target"], sample.trajectory, weight
    )
    changes, opt_state = optimizer.update(grads, state.opt_state, online)
    online = optax.apply_updates(online, changes)
    count = state.extra["gradient_steps"] + 1
    nearer = polyak(state.extra["target"], online, config.target_step_size)
    target = periodic(state.extra["target"], nearer, count, config.target_period)
    metrics |= {"gradient/norm": optax.tree.norm(grads), "exploration/epsilon": state.params["epsilon"]}
    extra = {"target": target, "gradient_steps": count}
    params = state.params | online
    return LearnerState(params, opt_state, state.num_updates, extra), metrics, priorities


def loss(
    config: TeamQConfig,
    net: TeamValues,
    num_agents: int,
    online: Params,
    target: Params,
    window: Trajectory,
    weight: Array,
) -> tuple[Array, tuple[Metrics, Array]]:
    """Half the squared error of the team's values, over the steps learned from, and priorities [N] of the windows.

    Args:
        config: of the agent.
        net: its networks.
        num_agents: n.
        online: parameters that are learned.
        target: those that make targets.
        window: [L+1 | L, N n, ...].
        weight: [N] of each window.
    """
    learned, values = values_after_burn_in(net, online, window, config.burn_in)
    _, target_values = values_after_burn_in(net, target, window, config.burn_in)
    steps = team_steps(learned, num_agents)
    before = jax.tree.map(lambda leaf: leaf[:-1], learned.observation)
    after = jax.tree.map(lambda leaf: leaf[1:], learned.observation)
    chosen = net.mixed(online, values[:-1], learned.action, before, steps.present)
    best = greedy(values[1:] if config.double else target_values[1:], net.legal(after))
    next_value = net.mixed(target, target_values[1:], best, after, steps.follows)
    goal = team_targets(steps, next_value, discount=config.discount, num_steps=config.n_step)
    counts = steps.valid & (jnp.arange(len(steps.valid))[:, None] < config.sequence_length)
    mean = partial(returns.weighted_mean, weight=counts.astype(chosen.dtype))
    error = jnp.where(counts, jax.lax.stop_gradient(goal) - chosen, 0.0)
    mean_loss = 0.5 * mean(jnp.square(error) * weight)
    metrics = {
        "loss/value": mean_loss,
        "value/mean": mean(chosen),
        "value/absolute_error": mean(jnp.abs(error)),
    }
    return mean_loss, (metrics, jax.lax.stop_gradient(priorities_of(error, counts)))


def values_after_burn_in(net: TeamValues, params: Params, window: Trajectory, burn_in: int) -> tuple[Trajectory, Array]:
    """The window without its first steps, and all agents' values [L+1, N n, A] of the rest: no gradient reaches those steps."""
    state, window = window.agent_state, dataclasses.replace(window, agent_state=())
    if burn_in:
        first, is_first = jax.tree.map(lambda leaf: leaf[:burn_in], (window.observation, window.is_first))
        state = jax.lax.stop_gradient(net.unroll(params, first, state, is_first)[1])
        window = jax.tree.map(lambda leaf: leaf[burn_in:], window)
    values, _ = net.unroll(params, window.observation, state, window.is_first)
    return window, values


def priorities_of(error: Array, counts: Array) -> Array:
    """[N] of [L, N] errors of the steps that count. Source: Kapturowski et al. 2019 (R2D2), section 2.3."""
    absolute = jnp.where(counts, jnp.abs(error), 0.0)
    mean = jnp.sum(absolute, axis=0) / jnp.maximum(jnp.sum(counts, axis=0), 1)
    return _PRIORITY_OF_LARGEST * jnp.max(absolute, axis=0) + (1.0 - _PRIORITY_OF_LARGEST) * mean
