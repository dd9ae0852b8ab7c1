"""Advantages and returns, time-major, under Gymnasium's NEXT_STEP episode boundaries.

`value[t]` belongs to `observation[t]`, so the value after a truncated step is `value[t + 1]`, that of the terminal
observation. A step with `valid=False` only reset: its entries are 0 and nothing flows across it.
"""

import jax
import jax.numpy as jnp

from agents.api import Array

_ROUNDING = float(jnp.finfo(jnp.float32).eps)  # of numbers, as a share of them


def gae(
    reward: Array,
    value: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    *,
    discount: float,
    lambda_: float,
) -> Array:
    """Returns generalized advantage estimates.

    delta_t = r_t + g (1 - terminated_t) V_{t+1} - V_t;  A_t = delta_t + g lambda (1 - ended_t) valid_{t+1} A_{t+1}.

    Examples:
        >>> one, no = jnp.ones([3, 1]), jnp.zeros([3, 1], bool)
        >>> gae(one, jnp.zeros([4, 1]), no, no, ~no, discount=0.5, lambda_=1.0)[:, 0].tolist()
        [1.75, 1.5, 1.0]

    Args:
        reward: [T, B] float32.
        value: [T+1, B] float32, of every observation.
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        valid: [T, B] bool.
        discount: g in [0, 1].
        lambda_: Lambda in [0, 1].

    Returns:
        [T, B] float32 advantages, 0 where not valid.

    Source: Schulman et al. 2016 (arXiv:1506.02438), eq. 16.
    """
    counted = valid.astype(value.dtype)
    delta = counted * (reward + discount * (~terminated) * value[1:] - value[:-1])
    carried = discount * lambda_ * counted * (~(terminated | truncated))

    def step(advantage: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        delta_t, carried_t = inputs
        advantage = delta_t + carried_t * advantage
        return advantage, advantage

    _, advantages = jax.lax.scan(step, jnp.zeros_like(delta[0]), (delta, carried), reverse=True, unroll=8)
    return advantages


def lambda_returns(reward: Array, discount: Array, value: Array, bootstrap: Array, lambda_: float | Array) -> Array:
    """Returns R_t = r_{t+1} + g_{t+1} ((1 - lambda_{t+1}) V_{t+1} + lambda_{t+1} R_{t+1}) for t < H, with R_H = bootstrap.

    Examples:
        >>> one = jnp.ones([2])
        >>> lambda_returns(one, 0.5 * one, 4.0 * one, jnp.array(8.0), lambda_=1.0).tolist()
        [3.5, 5.0]

    Args:
        reward: [H, ...] float32, r_{t+1}: of the step that arrives at state t + 1.
        discount: [H, ...] float32, g_{t+1}: 0 where state t + 1 is terminal.
        value: [H, ...] float32, V_{t+1}.
        bootstrap: [...] float32, the return at the last state.
        lambda_: Lambda in [0, 1]; an array [H, ...] where it differs: 0 where an episode was cut at state t + 1.

    Source: Sutton and Barto 2018, eq. 12.18.
    """
    mixing = jnp.broadcast_to(jnp.asarray(lambda_, reward.dtype), reward.shape)

    def step(later: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
        reward_t, discount_t, value_t, mixing_t = inputs
        total = reward_t + discount_t * ((1.0 - mixing_t) * value_t + mixing_t * later)
        return total, total

    return jax.lax.scan(step, bootstrap, (reward, discount, value, mixing), reverse=True, unroll=8)[1]


def monte_carlo(
    reward: Array, value: Array, terminated: Array, truncated: Array, valid: Array, *, discount: float
) -> tuple[Array, Array]:
    """Returns the discounted return to the end of each episode, and whether that end lies in the trajectory.

    Args:
        reward: [T, B] float32.
        value: [T+1, B] float32, after a truncated step and after the trajectory.
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        valid: [T, B] bool.
        discount: g in [0, 1].

    Returns:
        [T, B] float32 returns, and [T, B] bool: the episode ended (terminated or truncated) at this step or a later one of the
        trajectory. 0 and False where not valid.
    """
    ended = terminated | truncated
    # A step that does not count starts an episode, perhaps without an end before it (a failure cut it).
    cut_next = jnp.concatenate([~valid[1:], jnp.zeros_like(valid[:1])])
    after_end = discount * jnp.where(terminated, 0.0, value[1:])

    def step(later: tuple[Array, Array], inputs: tuple[Array, ...]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        reward_t, after_end_t, ended_t, cut_next_t, valid_t = inputs
        later_return, later_complete = later
        total = reward_t + jnp.where(ended_t | cut_next_t, after_end_t, discount * later_return)
        result = jnp.where(valid_t, total, 0.0), valid_t & (ended_t | later_complete)
        return result, result

    last = value[-1], jnp.zeros_like(ended[0])
    _, result = jax.lax.scan(step, last, (reward, after_end, ended, cut_next, valid), reverse=True, unroll=8)
    return result


def standardize(x: Array, weight: Array, epsilon: float = 1e-8) -> Array:
    """Returns `x` shifted and scaled to weighted mean 0 and standard deviation 1; all zero if the weights are.

    Examples:
        >>> standardize(jnp.array([1.0, 3.0, 100.0]), weight=jnp.array([1.0, 1.0, 0.0])).tolist()
        [-1.0, 1.0, 0.0]

    Args:
        x: any shape.
        weight: same shape, >= 0.
        epsilon: added to the standard deviation, in units of `x`.
    """
    centered = _center(x, weight)
    variance = weighted_mean(jnp.square(centered), weight)
    return centered / (jnp.sqrt(variance) + epsilon) * (weight > 0)


def weighted_mean(x: Array, weight: Array) -> Array:
    """Returns the scalar mean of `x` under `weight` of the same shape; 0 if all weights are 0.

    Examples:
        >>> float(weighted_mean(jnp.array([1.0, 3.0, jnp.nan]), weight=jnp.array([1.0, 1.0, 0.0])))
        2.0
    """
    total = jnp.sum(weight)
    return jnp.sum(jnp.where(weight > 0, x, 0.0) * weight) / jnp.where(total > 0, total, 1.0)


def _center(x: Array, weight: Array) -> Array:
    """Returns `x` minus its weighted mean. The second mean is the rounding error of the first: all there is of a constant."""
    centered = x - weighted_mean(x, weight)
    return centered - weighted_mean(centered, weight)


def explained_variance(target: Array, value: Array, weight: Array) -> Array:
    """Returns the scalar 1 - Var[target - value] / Var[target] under `weight` of the same shape; 0 for constant targets."""
    variance, unexplained = (weighted_mean(jnp.square(_center(x, weight)), weight) for x in (target, target - value))
    varies = variance > jnp.square(_ROUNDING * weighted_mean(jnp.abs(target), weight))
    return jnp.where(varies, 1.0 - unexplained / jnp.where(varies, variance, 1.0), 0.0)
