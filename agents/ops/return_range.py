"""Range of returns: a running estimate of the distance between two percentiles, by which advantages are divided.

Source: Hafner et al. 2025 (DreamerV3, arXiv:2301.04104), "Actor learning".
"""

from typing import NamedTuple

import jax.numpy as jnp

from agents.api import Array


class ReturnRange(NamedTuple):
    """Attributes: low, high: float32 scalars, running means of the 5th and the 95th percentile; both 0 at first."""

    low: Array
    high: Array


def init_range() -> ReturnRange:
    """Returns the range before the first batch."""
    return ReturnRange(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32))


def follow_range(old: ReturnRange, returns: Array, rate: float) -> ReturnRange:
    """Returns the range moved by `rate` towards the percentiles of all `returns`."""
    low, high = jnp.percentile(returns, jnp.array([5.0, 95.0]))
    return ReturnRange(old.low + rate * (low - old.low), old.high + rate * (high - old.high))


def range_scale(current: ReturnRange) -> Array:
    """Returns what advantages are divided by: the range, at least 1, so that small returns are not magnified."""
    return jnp.maximum(1.0, current.high - current.low)
