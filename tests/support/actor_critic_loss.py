"""The advantages and targets that the loss of an actor-critic uses, read off its gradient."""

import dataclasses
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Trajectory
from agents.networks.actor_critic import ActorCritic
from agents.networks.distributions import categorical


class Learned(NamedTuple):
    """Attributes: advantage [T, B] and value target [T, B] of each step (0 and the value where it does not count); metrics."""

    advantage: np.ndarray
    target: np.ndarray
    metrics: dict


def parameter_network() -> ActorCritic:
    """Returns a network whose outputs are its parameters, {"logits": [T+1, B, 2], "value": [T+1, B]}."""

    def unroll(params, observation, state, is_first):
        return params["logits"], params["value"], state

    unused = cast(Any, None)
    return ActorCritic(unused, unused, unused, categorical(2), lambda num_rows: (), unused, unroll, False)


def learned(module: ModuleType, config: Any, batch: Trajectory, log_ratio: Any, value: Any, counts: int) -> Learned:
    """Returns what `module.loss` makes of a trajectory.

    With even odds and action 0, the gradient of the logits is -A (1/2, -1/2) / counts; that of the values is
    c_v (V - target) / counts.

    Args:
        module: Algorithm with a function `loss(config, net, params, trajectory, entropy_coef)`.
        config: Configuration of the algorithm; its value_coef must not be 0.
        batch: [T, B]; its actions and log-probabilities are replaced.
        log_ratio: [T, B], log of target over behavior probability.
        value: [T+1, B].
        counts: Number of steps that should count.
    """
    steps, rows = batch.reward.shape
    log_prob = (np.log(0.5) - np.asarray(log_ratio)).astype(np.float32)
    batch = dataclasses.replace(
        batch,
        action=np.zeros((steps, rows), np.int32),
        extras={"behavior_log_prob": np.broadcast_to(log_prob, (steps, rows))},
    )
    params = {"logits": jnp.zeros((steps + 1, rows, 2)), "value": jnp.asarray(value)}
    loss = partial(module.loss, config, parameter_network())
    grads, metrics = jax.grad(loss, has_aux=True)(params, batch, 0.0)  # without entropy bonus
    advantage = -2.0 * counts * np.asarray(grads["logits"])[:-1, :, 0]
    target = np.asarray(value)[:-1] - counts * np.asarray(grads["value"])[:-1] / config.value_coef
    assert not np.asarray(grads["value"])[-1].any()
    return Learned(advantage, target, metrics)
