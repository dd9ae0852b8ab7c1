"""Range of returns: a running estimate of the distance between two percentiles, by which advantages are divided.

Source: Hafner et al. 2025 (DreamerV3, arXiv:2301.04104), "Actor learning".
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Array


class ReturnRange(NamedTuple):
    """Attributes: low, high: float32 scalars, running means of the 5th and the 95th percentile; both 0 at first."""

    low: Array
    high: Array


def init_range() -> ReturnRange:
    """Returns the range before the first batch."""
    return ReturnRange(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32))


def follow_range(old: ReturnRange, returns: Array, counted: Array, rate: float) -> ReturnRange:
    """Returns the range moved by `rate` towards the percentiles of the returns [..., N] of those that count, [N] bool."""
    low, high = jnp.nanpercentile(jnp.where(counted, returns, jnp.nan), jnp.array([5.0, 95.0]))
    moved = ReturnRange(old.low + rate * (low - old.low), old.high + rate * (high - old.high))
    return jax.tree.map(partial(jnp.where, jnp.any(counted)), moved, old)


def range_scale(current: ReturnRange) -> Array:
    """Returns what advantages are divided by: the range, at least 1, so that small returns are not magnified."""
    return jnp.maximum(1.0, current.high - current.low)
