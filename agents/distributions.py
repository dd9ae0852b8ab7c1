"""Action distributions over network outputs. Rows sample with one key each, so a row's action never depends on its batch.

Each distribution is a bundle of pure functions of `parameters` (what the network's policy head gives).
"""

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from agents.api import Array
from envpool_bridge.errors import UserError
from envpool_bridge.specs import ArraySpec, DiscreteSpec, EnvSpec

_LOG_2PI = 1.8378770664093453


class SampleFn(Protocol):
    """Actions [B, ...] from parameters [B, P] and keys [B] (consumed)."""

    def __call__(self, parameters: Array, keys: Array) -> Array: ...


class LogProbFn(Protocol):
    """Log-probabilities [...] in nats of actions [..., *action shape] under parameters [..., P]."""

    def __call__(self, parameters: Array, action: Array) -> Array: ...


class ParametersFn(Protocol):
    """Something of the distribution itself: its mode [..., *action shape], or its entropy [...] in nats."""

    def __call__(self, parameters: Array) -> Array: ...


class Distribution(NamedTuple):
    """Pure functions of the policy head's output.

    Attributes:
        num_parameters: P, size of the policy head.
        sample: draws an action a row.
        mode: the most likely action.
        log_prob: density in nats; for continuous actions with respect to the stored action.
        entropy: in nats; for TanhNormal that of the Gaussian before squashing (there is no closed form after).
    """

    num_parameters: int
    sample: SampleFn
    mode: ParametersFn
    log_prob: LogProbFn
    entropy: ParametersFn


def categorical(num_values: int) -> Distribution:
    """One of `num_values` actions; parameters are logits."""

    def sample(parameters: Array, keys: Array) -> Array:
        noise = jax.vmap(lambda key: jax.random.gumbel(key, (num_values,)))(keys)
        return jnp.argmax(parameters + noise, axis=-1).astype(jnp.int32)

    def mode(parameters: Array) -> Array:
        return jnp.argmax(parameters, axis=-1).astype(jnp.int32)

    def log_prob(parameters: Array, action: Array) -> Array:
        # A one-hot product, not a gather: on CPU its gradient is a plain matrix instead of a scatter.
        chosen = action[..., None] == jnp.arange(num_values)
        return jnp.sum(jnp.where(chosen, jax.nn.log_softmax(parameters), 0.0), axis=-1)

    def entropy(parameters: Array) -> Array:
        log_probs = jax.nn.log_softmax(parameters)
        return -jnp.sum(jnp.exp(log_probs) * jnp.where(jnp.isfinite(log_probs), log_probs, 0.0), axis=-1)

    return Distribution(num_values, sample, mode, log_prob, entropy)


def diagonal_normal(num_dimensions: int, shape: tuple[int, ...]) -> Distribution:
    """Independent Gaussians; parameters are means then log standard deviations. The environment clips to its bounds."""

    def sample(parameters: Array, keys: Array) -> Array:
        mean, log_std = jnp.split(parameters, 2, axis=-1)
        noise = jax.vmap(lambda key: jax.random.normal(key, (num_dimensions,)))(keys)
        return (mean + jnp.exp(log_std) * noise).reshape(mean.shape[:-1] + shape)

    def mode(parameters: Array) -> Array:
        mean, _ = jnp.split(parameters, 2, axis=-1)
        return mean.reshape(mean.shape[:-1] + shape)

    def log_prob(parameters: Array, action: Array) -> Array:
        mean, log_std = jnp.split(parameters, 2, axis=-1)
        return _normal_log_prob(mean, log_std, action.reshape(mean.shape)).sum(-1)

    def entropy(parameters: Array) -> Array:
        _, log_std = jnp.split(parameters, 2, axis=-1)
        return jnp.sum(log_std + 0.5 * (1.0 + _LOG_2PI), axis=-1)

    return Distribution(2 * num_dimensions, sample, mode, log_prob, entropy)


def tanh_normal(num_dimensions: int, shape: tuple[int, ...], low: Array, high: Array) -> Distribution:
    """Gaussians squashed by tanh and scaled to the finite bounds [low, high] (each broadcasting against [D]).

    Source: Haarnoja et al. 2018 (arXiv:1801.01290), appendix C.
    """
    centre, half = (high + low) / 2.0, (high - low) / 2.0

    def squash(raw: Array) -> Array:
        return (centre + half * jnp.tanh(raw)).reshape(raw.shape[:-1] + shape)

    def sample(parameters: Array, keys: Array) -> Array:
        mean, log_std = jnp.split(parameters, 2, axis=-1)
        noise = jax.vmap(lambda key: jax.random.normal(key, (num_dimensions,)))(keys)
        return squash(mean + jnp.exp(log_std) * noise)

    def mode(parameters: Array) -> Array:
        mean, _ = jnp.split(parameters, 2, axis=-1)
        return squash(mean)

    def log_prob(parameters: Array, action: Array) -> Array:
        mean, log_std = jnp.split(parameters, 2, axis=-1)
        unit = (action.reshape(mean.shape) - centre) / half
        # Actions are stored after squashing, in float32: at the very bounds arctanh would be infinite.
        raw = jnp.arctanh(jnp.clip(unit, -1.0 + 1e-6, 1.0 - 1e-6))
        # log(1 - tanh(x)^2) without cancellation.
        log_slope = 2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw)) + jnp.log(half)
        return (_normal_log_prob(mean, log_std, raw) - log_slope).sum(-1)

    def entropy(parameters: Array) -> Array:
        _, log_std = jnp.split(parameters, 2, axis=-1)
        return jnp.sum(log_std + 0.5 * (1.0 + _LOG_2PI), axis=-1)

    return Distribution(2 * num_dimensions, sample, mode, log_prob, entropy)


def distribution_for(spec: EnvSpec, squash: bool = False) -> Distribution:
    """The distribution that fits the action spec.

    Args:
        spec: of the environment.
        squash: TanhNormal instead of DiagonalNormal for continuous actions; needs finite bounds.

    Raises:
        UserError: squashing was asked for unbounded actions.
    """
    action = spec.action
    if isinstance(action, DiscreteSpec):
        return categorical(action.num_values)
    size = _size(action)
    if not squash:
        return diagonal_normal(size, action.shape)
    low, high = action.bound("low"), action.bound("high")
    if low is None or high is None:
        raise UserError(f"{spec.env_id}: squashed actions need finite bounds, got unbounded ones; use squash=False")
    return tanh_normal(size, action.shape, jnp.ravel(low), jnp.ravel(high))


def _size(spec: ArraySpec) -> int:
    size = 1
    for length in spec.shape:
        size *= length
    return size


def _normal_log_prob(mean: Array, log_std: Array, x: Array) -> Array:
    return -0.5 * jnp.square((x - mean) * jnp.exp(-log_std)) - log_std - 0.5 * _LOG_2PI
