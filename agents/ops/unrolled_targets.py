"""Targets of a model that is unrolled for K steps from the first observation of a window, across ends of episodes.

Its gradient is scaled at each step by `scale_gradient`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Array, Trajectory
from agents.ops.n_step import n_step_rewards, take_steps
from envpool_bridge.errors import UserError


class UnrolledTargets(NamedTuple):
    """Targets of the states 0 to K of N windows.

    Beyond a terminal state rewards and values are 0. Beyond a truncated one nothing is known.

    Attributes:
        reward: [K, N] float32, of the actions 0 to K - 1.
        value: [K+1, N] float32, n-step returns.
        known: [K+1, N] float32, 0 where reward and value are unknown, otherwise 1.
        acted: [K+1, N] float32, 1 where the episode continues and an action was chosen, otherwise 0.
    """

    reward: Array
    value: Array
    known: Array
    acted: Array


def unrolled_targets(
    window: Trajectory,
    bootstrap: Array,
    *,
    unroll_steps: int,
    n_step: int,
    discount: float,
    shortened: Array | None = None,
) -> UnrolledTargets:
    """Returns the targets of windows of L >= K + n steps. All are unknown for a window whose first step only resets.

    Args:
        window: N windows of L steps.
        bootstrap: [L+1, N] float32, values of all observations.
        unroll_steps: K.
        n_step: n, rewards of a return before it bootstraps.
        discount: g, per env step.
        shortened: [N] int32 in [1, n], the n of each window; None: the same of all.

    Source: Schrittwieser et al. 2020 (arXiv:1911.08265), appendix G.
    """
    ends_of_task, valid = window.terminated, window.valid

    def returns_of(n: int) -> Array:
        sums = n_step_rewards(window.reward, ends_of_task, window.truncated, valid, discount=discount, n_step=n)
        return sums.reward + sums.discount * take_steps(bootstrap, sums.position)

    returns = returns_of(n_step)
    for n in range(1, n_step) if shortened is not None else ():
        returns = jnp.where(shortened == n, returns_of(n), returns)
    # A step that only resets starts an episode, perhaps without an end before it (a failure cut it).
    resets_next = jnp.concatenate([~valid[1:], jnp.zeros_like(valid[:1])])
    ends = ends_of_task | window.truncated | resets_next
    ended = _any_before(ends)
    terminal = _any_before(ends_of_task & ~ended)
    acted = valid[0] & ~ended
    known = acted | (valid[0] & terminal)
    steps = unroll_steps + 1
    return UnrolledTargets(
        reward=jnp.where(acted, window.reward, 0.0)[:unroll_steps],
        value=jnp.where(acted, returns, 0.0)[:steps],
        known=known[:steps].astype(jnp.float32),
        acted=acted[:steps].astype(jnp.float32),
    )


def unrolled_priorities(steps: Trajectory, *, unroll_steps: int, n_step: int, discount: float) -> Array:
    """Returns [T, B] priorities of the windows that start at the first T of T + K + n - 1 steps, from values of the search.

    The value after the last step is not recorded; the value of the last observation replaces it.

    Args:
        steps: Steps with the extra "root_value".
        unroll_steps: K.
        n_step: n, rewards of a return before it bootstraps.
        discount: g, per env step.
    """
    value = steps.extras["root_value"]
    ends = (steps.terminated, steps.truncated, steps.valid)
    sums = n_step_rewards(steps.reward, *ends, discount=discount, n_step=n_step)
    bootstrap = take_steps(value, jnp.minimum(sums.position, value.shape[0] - 1))
    error = jnp.abs(sums.reward + sums.discount * bootstrap - value)
    windows = value.shape[0] - (unroll_steps + n_step) + 1
    return jnp.where(steps.valid, error, 0.0)[:windows]


def shortened_returns(age: Array, n_step: int, fraction: float, total_updates: int) -> Array:
    """Returns [N] int32, the n of windows by their age: one less after each `fraction` of the run, at least 1.

    Rewards of an old policy say less of the present one. Source: Ye et al. 2021 (arXiv:2111.00210), section 4.3.

    Examples:
        >>> shortened_returns(jnp.array([0, 29, 30, 65, 99]), n_step=3, fraction=0.3, total_updates=100).tolist()
        [3, 3, 2, 1, 1]

    Args:
        age: [N] int32, updates since each window was collected.
        n_step: n of new windows.
        fraction: Fraction of the run.
        total_updates: Trajectories of the whole run.

    Raises:
        UserError: If the number of updates is not known.
    """
    if total_updates < 1:
        raise UserError(
            f"returns that shorten over the run need its number of updates: got total_updates={total_updates}; give it, or "
            f"n_step_decay_fraction None"
        )
    passed = jnp.floor(age.astype(jnp.float32) / (fraction * total_updates)).astype(jnp.int32)
    return jnp.clip(n_step - passed, 1, n_step)


def scale_gradient(x: Array, factor: float) -> Array:
    """Returns x, with its gradient multiplied by the factor."""
    return factor * x + (1.0 - factor) * jax.lax.stop_gradient(x)


def _any_before(flags: Array) -> Array:
    """Returns [L, N] bool: whether any earlier step has the flag."""
    counts = jnp.cumsum(flags, axis=0) - flags
    return counts > 0
