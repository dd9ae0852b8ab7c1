"""Moments of the running discounted return. Rewards are divided by its deviation.

R_t = g R_{t-1} + r_t within an episode, from 0 at its first step (Engstrom et al. 2020, arXiv:2005.12729; VecNormalize of
Stable-Baselines). They keep R for each row from one batch to the next. Here a learner may see other rows in each batch (replicas
that push at their own pace, trajectories that are dropped) and does not know their number. So it keeps the *mean and variance over
rows* of R at the end of a batch. The unknown R of a row that is within an episode at the start of the next batch is a draw from
them, independent of the rewards that follow.

The result is exact where episodes start within the batch, and exact on average for rewards that are independent from step to step.
Where some rows' rewards stay above others' for more than T steps, the variance between rows is underestimated. The worst case is
rows of constant rewards: a factor of about (1 - g^T) / (1 + g^T), which nears 1 as T grows beyond the horizon 1 / (1 - g).
"""

import dataclasses

import jax
import jax.numpy as jnp

from agents.api import Array, Trajectory
from agents.ops.running_moments import Moments, RunningMoments, init_moments, merge


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ReturnBatch:
    """Moments of one batch.

    Attributes:
        moments: Moments of R at all valid steps, in environment reward units.
        count: float32 scalar, rows that are within an episode at the end of the batch.
        mean: float32 scalar, mean of R over these rows at the end; 0 without any.
        variance: float32 scalar, likewise.
    """

    moments: Moments
    count: Array
    mean: Array
    variance: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ReturnMoments:
    """State that is kept from batch to batch.

    Attributes:
        running: Moments of R at all valid steps so far, in environment reward units.
        mean: float32 scalar, mean of R over rows at the end of the newest batch.
        variance: float32 scalar, likewise.
    """

    running: RunningMoments
    mean: Array
    variance: Array


def init_returns() -> ReturnMoments:
    """Returns the moments before the first batch, in which every row starts an episode."""
    return ReturnMoments(init_moments(()), jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32))


def return_batch(moments: ReturnMoments, batch: Trajectory, discount: float) -> ReturnBatch:
    """Returns moments of R over a batch; `discount` is g."""
    inside, share = _returns_inside(batch, discount)
    # R = inside + share * (R before the batch), so by the law of total variance:
    expected, variance = inside + share * moments.mean, jnp.square(share) * moments.variance
    continues = batch.valid[-1] & ~(batch.terminated[-1] | batch.truncated[-1])
    last = _mixture(expected[-1], variance[-1], continues)
    return ReturnBatch(_mixture(expected, variance, batch.valid), last.count, last.mean, last.variance)


def merge_returns(moments: ReturnMoments, batch: ReturnBatch) -> ReturnMoments:
    """Returns the state after the batch; the older mean and variance stay if every row ended its episode."""
    any_row = batch.count > 0
    return ReturnMoments(
        merge(moments.running, batch.moments),
        jnp.where(any_row, batch.mean, moments.mean),
        jnp.where(any_row, batch.variance, moments.variance),
    )


def _returns_inside(batch: Trajectory, discount: float) -> tuple[Array, Array]:
    """Returns [T, B] R of the rewards within the batch, and [T, B] the factor of R before the batch."""

    def step(
        carry: tuple[Array, Array], inputs: tuple[Array, Array]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        reward, decay = inputs
        carry = (reward + decay * carry[0], decay * carry[1])
        return carry, carry

    decay = discount * (~batch.is_first[:-1]).astype(jnp.float32)
    start = (jnp.zeros_like(batch.reward[0]), jnp.ones_like(batch.reward[0]))
    return jax.lax.scan(step, start, (batch.reward, decay), unroll=8)[1]


def _mixture(mean: Array, variance: Array, valid: Array) -> Moments:
    """Returns the moments of an even mixture of distributions with these means and variances, of those that are valid."""
    weight = valid.astype(jnp.float32)
    count = jnp.sum(weight)
    divisor = jnp.maximum(count, 1.0)
    center = jnp.sum(weight * mean) / divisor
    return Moments(
        count, jnp.zeros_like(center), center, jnp.sum(weight * (jnp.square(mean - center) + variance)) / divisor
    )
