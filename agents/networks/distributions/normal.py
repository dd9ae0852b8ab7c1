"""Continuous actions: Gaussians, plain or squashed into bounds."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Array
from agents.networks.distributions.distribution import Distribution
from agents.ops.action_scaling import standard_normal

LOG_2PI = 1.8378770664093453
# Trapezoidal rule over a standard normal: exponentially accurate for smooth functions, independent of any key.
_POINTS = np.linspace(-4.5, 4.5, 16, dtype=np.float32)
_WEIGHTS = np.exp(-0.5 * _POINTS**2) / np.exp(-0.5 * _POINTS**2).sum()


def diagonal_normal(
    num_dimensions: int, shape: tuple[int, ...], low: np.ndarray | float = -1.0, high: np.ndarray | float = 1.0
) -> Distribution:
    """Returns independent Gaussians, scaled so that their interval [-1, 1] becomes the bounds; the environment clips to them.

    Parameters are means, then log standard deviations, both before scaling. An element with one finite bound is moved, so that its
    -1 or 1 becomes that bound, and keeps its units. One without finite bounds stays.

    Args:
        num_dimensions: D.
        shape: Shape of an action.
        low: Lower bounds, which broadcast against [D]; -inf for none.
        high: Upper bounds, likewise.

    Examples:
        >>> gaussian = diagonal_normal(2, shape=(2,))
        >>> parameters = jnp.array([[0.5, -0.5, 0.0, 0.0]])  # two means, two logarithms of deviations
        >>> gaussian.mode(parameters).tolist(), round(float(gaussian.entropy(parameters)[0]), 3)
        ([[0.5, -0.5]], 2.838)
    """
    center, half = _center_and_half(*(np.broadcast_to(np.float64(bound), num_dimensions) for bound in (low, high)))
    if not center.any() and (half == 1.0).all():
        scale = unscale = lambda raw: raw  # the same bits as without bounds
    else:
        scale, unscale = (lambda raw: center + half * raw), (lambda action: (action - center) / half)
    log_half = float(np.log(half).sum(dtype=np.float64))

    def log_prob(parameters: Array, action: Array) -> Array:
        mean, log_std = jnp.split(parameters, 2, axis=-1)
        return _normal_log_prob(mean, log_std, unscale(action.reshape(mean.shape))).sum(-1) - log_half

    gaussian = _gaussian(num_dimensions, lambda raw: scale(raw).reshape(raw.shape[:-1] + shape), log_prob)
    return gaussian._replace(entropy=lambda parameters: gaussian.entropy(parameters) + log_half)


def _center_and_half(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns what 0 becomes, and the length of 1, of each element: float32."""
    has_low, has_high = np.isfinite(low), np.isfinite(high)
    is_interval = has_low & has_high & (low < high)
    low, high = np.where(has_low, low, -1.0), np.where(has_high, high, 1.0)
    center = np.where(is_interval, (low + high) / 2.0, np.where(has_low, low + 1.0, high - 1.0))
    return center.astype(np.float32), np.where(is_interval, (high - low) / 2.0, 1.0).astype(np.float32)


def tanh_normal(num_dimensions: int, shape: tuple[int, ...], low: np.ndarray, high: np.ndarray) -> Distribution:
    """Returns Gaussians squashed by tanh and scaled to the finite bounds [low, high] (each broadcasts against [D]).

    Source: Haarnoja et al. 2018 (arXiv:1801.01290), appendix C. The entropy is that of the Gaussian plus the mean log slope of the
    map, by quadrature: errors are below 0.001 nats an element for deviations up to 2, 0.03 up to 4.
    """
    # In float64, because bounds near the largest float32 would overflow.
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    center, half = jnp.float32((high + low) / 2.0), jnp.float32((high - low) / 2.0)

    def squash(raw: Array) -> Array:
        return (center + half * jnp.tanh(raw)).reshape(raw.shape[:-1] + shape)

    def log_prob(parameters: Array, action: Array) -> Array:
        mean, log_std = jnp.split(parameters, 2, axis=-1)
        unit = (action.reshape(mean.shape) - center) / half
        # Actions are stored after squashing, in float32: at the bounds arctanh would be infinite.
        raw = jnp.arctanh(jnp.clip(unit, -1.0 + 1e-6, 1.0 - 1e-6))
        return (_normal_log_prob(mean, log_std, raw) - log_slope(raw)).sum(-1)

    def log_slope(raw: Array) -> Array:
        # log(1 - tanh(x)^2) without cancellation.
        return 2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw)) + jnp.log(half)

    def entropy(parameters: Array) -> Array:
        mean, log_std = (part[..., None, :] for part in jnp.split(parameters, 2, axis=-1))
        slopes = log_slope(mean + jnp.exp(log_std) * _POINTS[:, None])
        return gaussian.entropy(parameters) + jnp.sum(_WEIGHTS[:, None] * slopes, axis=(-2, -1))

    def inside(action: Array) -> Array:
        ends = (jnp.broadcast_to(center + side * half, num_dimensions).reshape(shape) for side in (-0.999, 0.999))
        return jnp.clip(action, *ends)

    gaussian = _gaussian(num_dimensions, squash, log_prob)
    return gaussian._replace(entropy=entropy, inside=inside)


def _normal_log_prob(mean: Array, log_std: Array, x: Array) -> Array:
    return -0.5 * jnp.square((x - mean) * jnp.exp(-log_std)) - log_std - 0.5 * LOG_2PI


def _gaussian(
    num_dimensions: int, to_action: Callable[[Array], Array], log_prob: Callable[[Array, Array], Array]
) -> Distribution:
    """Returns the distribution of actions that are functions of Gaussians [..., D]; the entropy is that of the Gaussians."""

    def from_noise(parameters: Array, noise: Array) -> Array:
        mean, log_std = jnp.split(parameters, 2, axis=-1)
        return to_action(mean + jnp.exp(log_std) * noise)

    def sample(parameters: Array, keys: Array) -> Array:
        return from_noise(parameters, standard_normal(keys, num_dimensions))

    def mode(parameters: Array) -> Array:
        return to_action(jnp.split(parameters, 2, axis=-1)[0])

    def entropy(parameters: Array) -> Array:
        _, log_std = jnp.split(parameters, 2, axis=-1)
        return jnp.sum(log_std + 0.5 * (1.0 + LOG_2PI), axis=-1)

    return Distribution(2 * num_dimensions, sample, mode, log_prob, entropy, from_noise)
