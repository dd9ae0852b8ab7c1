"""Scalars as categories: a number is divided between the two nearest of evenly spaced atoms, in rescaled units.

Source: Schrittwieser et al. 2020 (arXiv:1911.08265), appendix F.
"""

import jax
import jax.numpy as jnp

from agents.api import Array
from agents.ops.returns import weighted_mean
from agents.ops.unrolled_targets import UnrolledTargets
from agents.ops.value_distributions import rescale, unrescale

_EPSILON = 1e-3  # of `rescale`, as published


def num_atoms(limit: int) -> int:
    """Returns K, the number of integer atoms from -limit to limit."""
    return 2 * limit + 1


def two_hot(x: Array, limit: int) -> Array:
    """Returns the probabilities [..., K] of K = 2 limit + 1 atoms whose mean is the rescaled number.

    Examples:
        >>> two_hot(jnp.array(0.0), limit=1).tolist()
        [0.0, 1.0, 0.0]

    Args:
        x: [...] float32. Numbers beyond the last atoms count as those.
        limit: Largest atom, in rescaled units: 20 represents numbers up to about 420, 300 up to about 58,700.
    """
    position = jnp.clip(rescale(x, _EPSILON), -limit, limit) + limit
    return jnp.clip(1.0 - jnp.abs(position[..., None] - jnp.arange(num_atoms(limit))), 0.0, 1.0)


def clamped_fraction(targets: UnrolledTargets, limit: int) -> Array:
    """Returns the share of known values and rewards that `two_hot` clamps, a scalar."""
    numbers = jnp.concatenate([targets.value, targets.reward])
    known = jnp.concatenate([targets.known, targets.known[:-1]])
    return weighted_mean(jnp.abs(rescale(numbers, _EPSILON)) > limit, known)


def two_hot_mean(logits: Array) -> Array:
    """Returns the number [...] that logits [..., K] of the atoms represent: the inverse of `two_hot` at its logarithm."""
    limit = logits.shape[-1] // 2
    mean = jnp.sum(jax.nn.softmax(logits) * jnp.arange(-limit, limit + 1), axis=-1)
    return unrescale(mean, _EPSILON)


def cross_entropy(logits: Array, target: Array) -> Array:
    """Returns -sum of target * log softmax(logits), [...], of logits and probabilities [..., K]."""
    return -jnp.sum(target * jax.nn.log_softmax(logits), axis=-1)
