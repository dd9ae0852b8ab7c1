"""Mean and variance of a stream, batch by batch, that still move after 1e9 steps.

Every number is the sum of a pair of float32, because jax has no float64 here. A single float32 would lose everything smaller than
its last bit: a count would stop at 2^24 times the batch, a mean far from 0 much sooner.
"""

import dataclasses

import jax
import jax.numpy as jnp

from agents.api import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Moments:
    """Moments of one batch.

    Attributes:
        count: float32 scalar, number of values.
        origin: [...] float32, the mean of each element, nearly.
        mean: [...] float32, mean difference of each element from `origin`: the rounding error of `origin`.
        variance: [...] float32, variance of each element.
    """

    count: Array
    origin: Array
    mean: Array
    variance: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RunningMoments:
    """Moments of all batches so far; each array is [2, ...] float32: a number and its rounding error.

    Attributes:
        count: [2], number of values.
        mean: [2, ...], mean of each element.
        variance: [2, ...], variance of each element.
    """

    count: Array
    mean: Array
    variance: Array


def init_moments(shape: tuple[int, ...]) -> RunningMoments:
    """Returns the moments before the first batch, of values of this shape."""
    # An array each: they are donated to the update, and no two of them may share memory.
    return RunningMoments(*(jnp.zeros((2, *rest), jnp.float32) for rest in ((), shape, shape)))


def batch_moments(x: Array, valid: Array) -> Moments:
    """Returns moments over T and B.

    Args:
        x: [T, B, ...].
        valid: [T, B] bool, whether a step counts.
    """
    weight = valid.astype(jnp.float32)
    count = jnp.sum(weight)
    divisor = jnp.maximum(count, 1.0)
    where = valid.reshape(valid.shape + (1,) * (x.ndim - 2))
    origin = jnp.sum(jnp.where(where, x.astype(jnp.float32), 0.0), axis=(0, 1)) / divisor
    difference = jnp.where(where, x.astype(jnp.float32) - origin, 0.0)
    mean = jnp.sum(difference, axis=(0, 1)) / divisor
    squares = jnp.where(where, jnp.square(difference - mean), 0.0)
    return Moments(count, origin, mean, jnp.sum(squares, axis=(0, 1)) / divisor)


def merge(running: RunningMoments, batch: Moments) -> RunningMoments:
    """Returns the moments of all values so far and those of the batch; an empty batch changes nothing.

    Examples:
        >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
        >>> after = merge(init_moments(()), batch_moments(x, jnp.ones([2, 2], bool)))
        >>> float(after.mean.sum()), float(after.variance.sum())
        (2.5, 1.25)

    Source: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances", eq. 2.1.
    """
    count = _add(running.count, batch.count)
    share = batch.count / jnp.maximum(count[0], 1.0)
    # Each part by itself: their sum would lose the small one.
    coarse, fine = batch.origin - running.mean[0], batch.mean - running.mean[1]
    spread = (batch.variance - running.variance[0]) - running.variance[1]
    return RunningMoments(
        count,
        _add(_add(running.mean, share * coarse), share * fine),
        _add(running.variance, share * (spread + (1.0 - share) * jnp.square(coarse + fine))),
    )


def deviation(running: RunningMoments, epsilon: float) -> Array:
    """Returns [...] float32, the root of variance plus `epsilon` (squared units of the values); 1 before the first batch."""
    return jnp.where(running.count[0] > 0, jnp.sqrt(jnp.maximum(running.variance[0], 0.0) + epsilon), 1.0)


def _add(pair: Array, x: Array) -> Array:
    """Returns the pair [2, ...] whose sum is that of `pair` and `x`, nearly exactly. Source: Knuth, TAOCP 2, 4.2.2, theorem B."""
    total = pair[0] + x
    part = total - pair[0]
    error = (pair[0] - (total - part)) + (x - part)
    rest = pair[1] + error
    renewed = total + rest
    return jnp.stack([renewed, rest - (renewed - total)])
