"""DQN, and by its options double, dueling, prioritised, n-step, distributional and noisy DQN, Rainbow and Ape-X.

Source: Mnih et al. 2015, algorithm 1. `docs/algorithms/dqn.md` lists the sources of the options and every deviation.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import (
    Action,
    Array,
    LearnerState,
    Metrics,
    Observation,
    Params,
    Replay,
    ReplayAgent,
    Sample,
    Trajectory,
)
from agents.dqn_config import DQNConfig, rainbow_config
from agents.dqn_learning import (
    DQNParts,
    apply_gradient,
    bound,
    followed,
    make_parts,
    make_refresh,
    of_action,
    recorded_errors,
    returns_of,
    sample_weights,
)
from agents.networks.config import NetworkConfig
from agents.ops.n_step import at_positions
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec

__all__ = ["DQNConfig", "make_dqn", "rainbow_config"]


class Transitions(NamedTuple):
    """What is learned from N windows: their first steps, each with its return of up to n steps.

    Attributes:
        observation: [N, ...] each leaf.
        action: [N] int32.
        reward: [N] float32, the discounted sum.
        discount: [N] float32, of the value of what follows.
        following: [N, ...] each leaf, the observation that the return bootstraps from.
        weight: [N] float32, 0 for a window that begins with a step that only resets.
    """

    observation: Observation
    action: Action
    reward: Array
    discount: Array
    following: Observation
    weight: Array


def make_dqn(config: DQNConfig, spec: EnvSpec, network: NetworkConfig) -> ReplayAgent:
    """DQN for this environment.

    Raises:
        UserError: the action is not one Discrete leaf, the network remembers or does not fit, or a schedule lacks the number of
            updates.
    """
    if network.core != "none":
        raise UserError(
            f"DQN learns from single steps, without the state of a memory: expected network.core 'none', got {network.core!r}; "
            f"use R2D2"
        )
    parts = make_parts(config, spec, network)
    data = Replay(
        config.replay,
        config.num_steps,
        refresh=make_refresh(parts),
        initial_priority=partial(initial_priority, parts) if config.initial_priorities == "recorded" else None,
    )
    return ReplayAgent(name="dqn", update=partial(update, parts), data=data, **bound(parts))


def transitions(parts: DQNParts, steps: Trajectory) -> Transitions:
    """The first step of each window of n steps, with its return."""
    found = returns_of(parts.config, steps)
    observation = jax.tree.map(lambda leaf: leaf[0], steps.observation)
    following = at_positions(steps.observation, found.position[0])
    return Transitions(
        observation, steps.action[0], found.reward[0], found.discount[0], following, steps.valid[0].astype(jnp.float32)
    )


def loss(
    parts: DQNParts, params: Params, target: Params, batch: Transitions, weight: Array, noise: Array
) -> tuple[Array, tuple[Metrics, Array]]:
    """Mean weighted error of the actions taken; with metrics and the priorities [N].

    Args:
        parts: of the agent.
        params: of the network.
        target: of the target network.
        batch: N transitions.
        weight: [N] float32 importance weights.
        noise: one key for noisy layers, consumed.
    """
    keys = jax.random.split(noise, 3) if parts.config.noisy else (None, None, None)
    net, values = parts.net, parts.values
    taken = of_action(net.outputs(params, batch.observation, keys[0]), batch.action)
    judged = net.outputs(target, batch.following, keys[1])
    chooser = net.outputs(params, batch.following, keys[2]) if parts.config.double else judged
    following = followed(parts, batch.following, chooser, judged)
    error, priority = values.loss(taken, following, batch.reward, batch.discount)
    priority = priority * batch.weight
    count = jnp.maximum(jnp.sum(batch.weight), 1.0)
    total = jnp.sum(error * weight * batch.weight) / count
    metrics = {
        "loss/total": total,
        "value/mean": jnp.sum(values.mean(taken) * batch.weight) / count,
        "value/following": jnp.sum(values.mean(following) * batch.weight) / count,
        "replay/priority": jnp.sum(priority) / count,
        "replay/importance": jnp.mean(weight),
    }
    return total, (metrics, priority)


def update(parts: DQNParts, state: LearnerState, sample: Sample, key: Array) -> tuple[LearnerState, Metrics, Array]:
    """One gradient step; `key` is consumed (by noisy layers)."""
    batch, weight = transitions(parts, sample.trajectory), sample_weights(parts, state, sample)
    gradient = jax.grad(partial(loss, parts), has_aux=True)
    grads, (metrics, priority) = gradient(state.params["network"], state.extra.target, batch, weight, key)
    state, metrics = apply_gradient(parts, state, grads, metrics)
    return state, metrics, priority


def initial_priority(parts: DQNParts, steps: Trajectory) -> Array:
    """[T, B] absolute errors of the windows that begin at the first T of T + n - 1 steps, from what acting recorded."""
    errors = recorded_errors(parts, steps)
    return errors[: errors.shape[0] - parts.config.num_steps + 1]
