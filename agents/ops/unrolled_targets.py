"""Targets of a model that is unrolled for K steps from the first observation of a window, across ends of episodes."""

from typing import NamedTuple

import jax.numpy as jnp

from agents.api import Array, Trajectory
from agents.ops.n_step import n_step_rewards, take_steps


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
    window: Trajectory, bootstrap: Array, *, unroll_steps: int, n_step: int, discount: float
) -> UnrolledTargets:
    """Returns the targets of windows of L >= K + n steps. All are unknown for a window whose first step only resets.

    Args:
        window: N windows of L steps.
        bootstrap: [L+1, N] float32, values of all observations.
        unroll_steps: K.
        n_step: n, rewards of a return before it bootstraps.
        discount: g, per env step.

    Source: Schrittwieser et al. 2020 (arXiv:1911.08265), appendix G.
    """
    ends_of_task, valid = window.terminated, window.valid
    sums = n_step_rewards(window.reward, ends_of_task, window.truncated, valid, discount=discount, n_step=n_step)
    returns = sums.reward + sums.discount * take_steps(bootstrap, sums.position)
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


def _any_before(flags: Array) -> Array:
    """Returns [L, N] bool: whether any earlier step has the flag."""
    counts = jnp.cumsum(flags, axis=0) - flags
    return counts > 0
