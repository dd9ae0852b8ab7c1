"""Losses and replay priorities of temporal-difference errors. Pure functions of arrays."""

import jax
import jax.numpy as jnp

from agents.api import Array
from agents.ops.returns import weighted_mean


def ensemble_squared_error(value: Array, target: Array, weight: Array, importance: Array) -> tuple[Array, Array]:
    """Returns half the mean squared error, summed over the members of an ensemble; and the errors.

    Args:
        value: [E, N] float32, values of every critic.
        target: [N] float32.
        weight: [N] float32, 0 for transitions that do not count.
        importance: [N] float32 importance weights.

    Returns:
        The loss, float32 scalar; `value - target`, [E, N] float32, 0 where the weight is 0.
    """
    error = jnp.where(weight > 0, value - target, 0.0)
    mean_per_member = jax.vmap(lambda x: weighted_mean(importance * x, weight))
    return 0.5 * jnp.sum(mean_per_member(jnp.square(error))), error


def window_priority(error: Array, counted: Array, eta: float) -> Array:
    """Returns eta max |error| + (1 - eta) mean |error| over the steps of each window that count; 0 if none does.

    Args:
        error: [L, ...] float32 temporal differences.
        counted: [L, ...] bool or float32, whether the step counts.
        eta: Weight of the largest error, in [0, 1].

    Returns:
        [...] float32.

    Source: Kapturowski et al. 2019 (R2D2), section 2.3.
    """
    size = jnp.where(counted, jnp.abs(error), 0.0)
    mean = jnp.sum(size, axis=0) / jnp.maximum(jnp.sum(counted, axis=0), 1)
    return eta * jnp.max(size, axis=0) + (1.0 - eta) * mean
