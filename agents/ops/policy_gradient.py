"""Losses of policy gradients: PPO's clipped surrogate, the actor-critic loss, the approximate KL divergence."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Array, Metrics
from agents.ops import returns
from agents.ops.value_distributions import huber


def clipped_surrogate_loss(
    log_prob: Array,
    behavior_log_prob: Array,
    advantage: Array,
    weight: Array,
    clip_epsilon: Array | float,
    dual_clip: float | None = None,
) -> tuple[Array, Metrics]:
    """Returns minus PPO's clipped surrogate, a scalar, with the metrics of how far the policy moved.

    Source: Schulman et al. 2017 (arXiv:1707.06347), eq. 7.

    Args:
        log_prob: [T, B] float32, of the actions under the newest parameters, nats.
        behavior_log_prob: [T, B] float32, of the actions when they were chosen, nats.
        advantage: [T, B] float32.
        weight: [T, B] float32, 0 where a step does not count.
        clip_epsilon: Largest distance from 1 at which the probability ratio counts.
        dual_clip: c > 1: where the advantage A < 0, the surrogate is at least c A (Ye et al. 2020). None: off.
    """
    mean = partial(returns.weighted_mean, weight=weight)
    log_ratio = counted_log_ratio(log_prob, behavior_log_prob, weight > 0)
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - clip_epsilon, 1.0 + clip_epsilon)
    surrogate = jnp.minimum(ratio * advantage, clipped * advantage)
    if dual_clip is not None:
        surrogate = jnp.where(advantage < 0, jnp.maximum(surrogate, dual_clip * advantage), surrogate)
    loss = -mean(surrogate)
    return loss, {
        "loss/policy": loss,
        "policy/approx_kl": mean(approximate_kl(log_ratio)),
        "policy/clip_fraction": mean((jnp.abs(ratio - 1.0) > clip_epsilon).astype(ratio.dtype)),
    }


class SurrogateCoefficients(NamedTuple):
    """Hyper-parameters of PPO's loss that schedules may change.

    Attributes:
        clip_epsilon: Largest distance from 1 at which the probability ratio counts.
        entropy: Weight of the entropy bonus.
    """

    clip_epsilon: Array | float
    entropy: Array | float


class ActorCriticCoefficients(NamedTuple):
    """Weights of the terms of `actor_critic_loss`.

    Attributes:
        value: c_v.
        entropy: c_e.
        huber_delta: Value error beyond which its loss is linear, in reward units; None: squared everywhere.
    """

    value: float
    entropy: Array | float
    huber_delta: float | None = None


def actor_critic_loss(
    log_prob: Array,
    entropy: Array,
    value: Array,
    advantage: Array,
    target: Array,
    weight: Array,
    coefficients: ActorCriticCoefficients,
) -> tuple[Array, Metrics]:
    """Returns - E[log pi(a|o) advantage] + c_v / 2 E[(V - target)^2] - c_e E[entropy] over the steps that count, and metrics.

    The caller stops the gradient of advantages and targets.

    Args:
        log_prob: [T, B] float32, of the actions under the newest parameters, nats.
        entropy: [T, B] float32, of the policy, nats.
        value: [T, B] float32.
        advantage: [T, B] float32.
        target: [T, B] float32, of the values.
        weight: [T, B] float32, 0 where a step does not count.
        coefficients: c_v, c_e and the shape of the value error.
    """
    mean = partial(returns.weighted_mean, weight=weight)
    policy = -mean(log_prob * advantage)
    value_error = 0.5 * mean(clipped_value_error(value, value, target, None, coefficients.huber_delta))
    mean_entropy = mean(entropy)
    total = policy + coefficients.value * value_error - coefficients.entropy * mean_entropy
    return total, {
        "loss/total": total,
        "loss/policy": policy,
        "loss/value": value_error,
        "policy/entropy": mean_entropy,
        "value/explained_variance": returns.explained_variance(target, jax.lax.stop_gradient(value), weight),
    }


def clipped_value_error(
    value: Array, old_value: Array, target: Array, clip_epsilon: float | None, huber_delta: float | None = None
) -> Array:
    """Returns the squared error of each value, or of the value clipped around its old one where that is larger.

    Args:
        value: Any shape.
        old_value: Same shape, the values before the update.
        target: Same shape.
        clip_epsilon: Largest distance from the old value; None does not clip.
        huber_delta: d > 0: an error e beyond it counts 2 d |e| - d^2, twice the Huber loss. None: squared errors.
    """
    error = 2.0 * huber(value - target, huber_delta)
    if clip_epsilon is None:
        return error
    clipped = old_value + jnp.clip(value - old_value, -clip_epsilon, clip_epsilon)
    return jnp.maximum(error, 2.0 * huber(clipped - target, huber_delta))


def counted_log_ratio(log_prob: Array, behavior_log_prob: Array, counts: Array) -> Array:
    """Returns the [T, B] log of target over behavior probability, nats; 0 where the step does not count.

    A reset step's log-ratio may be anything. Its exp must not overflow, or the gradient becomes NaN.
    """
    return jnp.where(counts, log_prob - behavior_log_prob, 0.0)


def approximate_kl(log_ratio: Array) -> Array:
    """Returns (r - 1) - log r of each step, nats: its mean is a low-variance estimate of KL(behavior || target).

    It is never negative, and 0 where the newest policy acted. Source: Schulman 2020.
    """
    return jnp.maximum(jnp.expm1(log_ratio) - log_ratio, 0.0)  # below 0 by rounding
