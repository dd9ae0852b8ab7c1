"""The clipped surrogate of PPO and what belongs to it: loss, ratio, optimizer, approximate KL divergence."""

from functools import partial
from typing import Protocol

import jax.numpy as jnp
import optax

from agents.api import Array, Metrics
from agents.ops import returns
from agents.ops.schedules import scale_by_schedule


class ClippedConfig(Protocol):
    """What the clipped surrogate needs to know.

    Attributes:
        clip_epsilon: how far the probability ratio counts.
        normalise_advantage: whether advantages are standardised over the steps that count.
    """

    @property
    def clip_epsilon(self) -> float: ...

    @property
    def normalise_advantage(self) -> bool: ...


class ActedBatch(Protocol):
    """What the clipped surrogate needs of steps, [T, B] each.

    Attributes:
        behaviour_log_prob: of the action when it was done, nats.
        advantage: reward units.
        weight: 0 where the step does not count.
    """

    @property
    def behaviour_log_prob(self) -> Array: ...

    @property
    def advantage(self) -> Array: ...

    @property
    def weight(self) -> Array: ...


def clipped_adam(rate: optax.Schedule, max_grad_norm: float, epsilon: float) -> optax.GradientTransformation:
    """Returns Adam behind a clip of the gradient's global norm.

    Args:
        rate: learning rate, of `num_updates`.
        max_grad_norm: largest global norm.
        epsilon: added to the square root of the second moment.
    """
    clip = optax.clip_by_global_norm(max_grad_norm)
    return optax.chain(clip, optax.scale_by_adam(eps=epsilon), scale_by_schedule(rate))


def clipped_policy_loss(
    config: ClippedConfig, log_prob: Array, batch: ActedBatch, dual_clip: float | None = None
) -> tuple[Array, Metrics]:
    """PPO's surrogate with its sign turned: minus the clipped gain, over the steps that count; and how far the policy moved.

    Source: Schulman et al. 2017 (arXiv:1707.06347), eq. 7.

    Args:
        config: of the algorithm.
        log_prob: [T, B] float32, of the actions under the newest parameters, nats.
        batch: of the same steps.
        dual_clip: c > 1: where the advantage A < 0, the surrogate is at least c A (Ye et al. 2020); None: off.
    """
    mean = partial(returns.weighted_mean, weight=batch.weight)
    advantage = returns.standardise(batch.advantage, batch.weight) if config.normalise_advantage else batch.advantage
    log_ratio = log_ratio_of(log_prob, batch.behaviour_log_prob, batch.weight > 0)
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - config.clip_epsilon, 1.0 + config.clip_epsilon)
    surrogate = jnp.minimum(ratio * advantage, clipped * advantage)
    if dual_clip is not None:
        surrogate = jnp.where(advantage < 0, jnp.maximum(surrogate, dual_clip * advantage), surrogate)
    loss = -mean(surrogate)
    return loss, {
        "loss/policy": loss,
        "policy/approx_kl": mean(approximate_kl(log_ratio)),
        "policy/clip_fraction": mean((jnp.abs(ratio - 1.0) > config.clip_epsilon).astype(ratio.dtype)),
    }


def log_ratio_of(log_prob: Array, behaviour_log_prob: Array, counts: Array) -> Array:
    """[T, B] log of target over behaviour probability, nats; 0 where the step does not count.

    What a reset step's log-ratio is may be anything; exp must not overflow there, or its gradient becomes NaN.
    """
    return jnp.where(counts, log_prob - behaviour_log_prob, 0.0)


def approximate_kl(log_ratio: Array) -> Array:
    """Of each step, nats: its mean is the low-variance estimate of KL(behaviour || target), E[(r - 1) - log r] (Schulman 2020).

    Never negative, and 0 where the newest policy acted.
    """
    return jnp.exp(log_ratio) - 1.0 - log_ratio
