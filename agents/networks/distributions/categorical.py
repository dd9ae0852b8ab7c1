"""Discrete actions: one choice, or an array of independent choices."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Array
from agents.networks.distributions.distribution import Distribution
from agents.networks.distributions.masking import ILLEGAL


def categorical(num_values: int) -> Distribution:
    """Returns the distribution of one of `num_values` actions, int32 of shape (). Parameters are logits.

    Examples:
        >>> fair = categorical(4)
        >>> logits = jnp.zeros([2, 4])
        >>> jnp.exp(fair.log_prob(logits, jnp.array([0, 3]))).round(3).tolist(), jnp.exp(fair.entropy(logits)).round(3).tolist()
        ([0.25, 0.25], [4.0, 4.0])
    """

    def sample(parameters: Array, keys: Array) -> Array:
        noise = jax.vmap(lambda key: jax.random.gumbel(key, (num_values,)))(keys)
        return jnp.argmax(parameters + noise, axis=-1).astype(jnp.int32)

    def mode(parameters: Array) -> Array:
        return jnp.argmax(parameters, axis=-1).astype(jnp.int32)

    def log_prob(parameters: Array, action: Array) -> Array:
        return jnp.sum(_log_prob_of_each(parameters, action), axis=-1)

    def entropy(parameters: Array) -> Array:
        return -jnp.sum(_negative_entropy_of_each(parameters), axis=-1)

    return Distribution(num_values, sample, mode, log_prob, entropy)


def multi_categorical(num_values: Sequence[int], shape: tuple[int, ...]) -> Distribution:
    """Returns independent choices, one for each element. Parameters are the logits of each element in turn; actions are int32.

    Args:
        num_values: Number of values of each element, flattened.
        shape: Shape of an action.
    """
    num_parameters = sum(num_values)

    def sample(parameters: Array, keys: Array) -> Array:
        noise = jax.vmap(lambda key: jax.random.gumbel(key, (num_parameters,)))(keys)
        return mode(parameters + noise)

    def mode(parameters: Array) -> Array:
        chosen = jnp.argmax(_by_element(parameters, num_values), axis=-1).astype(jnp.int32)
        return chosen.reshape(parameters.shape[:-1] + shape)

    def log_prob(parameters: Array, action: Array) -> Array:
        logits = _by_element(parameters, num_values)
        return jnp.sum(_log_prob_of_each(logits, action.reshape(logits.shape[:-1])), axis=(-2, -1))

    def entropy(parameters: Array) -> Array:
        return -jnp.sum(_negative_entropy_of_each(_by_element(parameters, num_values)), axis=(-2, -1))

    if len(num_values) != math.prod(shape):
        raise ValueError(f"{shape} has {math.prod(shape)} elements: got {len(num_values)} numbers of values")
    return Distribution(num_parameters, sample, mode, log_prob, entropy)


def _log_prob_of_each(logits: Array, action: Array) -> Array:
    """Returns terms [..., A] of a sum: the log-probability at the action, 0 elsewhere."""
    # A one-hot product, not a gather: on CPU its gradient is a plain matrix instead of a scatter.
    chosen = action[..., None] == jnp.arange(logits.shape[-1])
    return jnp.where(chosen, jax.nn.log_softmax(logits), 0.0)


def _negative_entropy_of_each(logits: Array) -> Array:
    """Returns terms [..., A] of a sum: p log p."""
    log_probs = jax.nn.log_softmax(logits)
    return jnp.exp(log_probs) * jnp.where(jnp.isfinite(log_probs), log_probs, 0.0)


def _by_element(parameters: Array, num_values: Sequence[int]) -> Array:
    """Reshapes [..., sum of num_values] to [..., elements, most values]; padding is less likely than illegal values."""
    widest = max(num_values)
    if min(num_values) == widest:
        return parameters.reshape((*parameters.shape[:-1], len(num_values), widest))
    ends = np.cumsum(num_values)
    lead = [(0, 0)] * (parameters.ndim - 1)
    pieces = [
        jnp.pad(parameters[..., end - size : end], [*lead, (0, widest - size)], constant_values=2.0 * ILLEGAL)
        for size, end in zip(num_values, ends.tolist(), strict=True)
    ]
    return jnp.stack(pieces, axis=-2)
