"""Importance weights of prioritized replay. Source: Schaul et al. 2016 (arXiv:1511.05952), section 3.4."""

import jax.numpy as jnp

from agents.api import Array, ReplayConfig
from agents.ops.schedules import Schedule, linear
from envpool_bridge.errors import UserError


def importance_weights(probability: Array, counted: Array, exponent: Array | float) -> Array:
    """Returns [N] float32: probability^-beta, divided by the largest of the windows that count. It is 0 for the others.

    The paper's factor, the number of windows to the power -beta, cancels in the division.

    Examples:
        >>> importance_weights(jnp.array([0.5, 0.125, 0.25]), counted=jnp.ones(3, bool), exponent=1.0).tolist()
        [0.25, 1.0, 0.5]

    Args:
        probability: [N] float32, positive, of sampling each window.
        counted: [N] bool or float32, whether any step of the window counts. A window of reset steps has the least priority.
        exponent: beta in [0, 1]. 1 corrects the bias of prioritized sampling fully; 0 gives every window that counts weight 1.
    """
    smallest = jnp.min(jnp.where(counted, probability, jnp.inf))
    # (min_j p_j / p)^b neither over- nor underflows.
    return jnp.where(counted, jnp.power(smallest / probability, exponent), 0.0)


def importance_exponent_schedule(
    replay: ReplayConfig, initial: float, total_updates: int, final: float = 1.0
) -> Schedule:
    """Returns beta (float32 scalar) as a function of `num_updates` (int32 scalar).

    Beta changes linearly from `initial` to `final` over the run. It is 0 where windows are sampled uniformly, which gives every
    window the weight 1.

    Args:
        replay: Replay, whose `priority_exponent` is 0 where windows are sampled uniformly.
        initial: beta of the first update, in [0, 1]; 0.4 in the paper.
        total_updates: Trajectories of the whole run.
        final: beta at the end of the run, in [0, 1].

    Raises:
        UserError: `initial` or `final` is outside [0, 1], or beta changes over a run of unknown length.
    """
    if not replay.priority_exponent:
        return lambda num_updates: jnp.zeros((), jnp.float32)
    if not (0.0 <= initial <= 1.0 and 0.0 <= final <= 1.0):
        raise UserError(f"the importance exponent must lie in [0, 1]: got {initial} and {final}")
    if initial != final and total_updates < 1:
        raise UserError(
            f"the importance exponent changes from {initial} to {final} over the run and needs its number of updates: got "
            f"total_updates={total_updates}; give it, or an exponent of {final}"
        )
    return linear(initial, final, max(total_updates, 1))
