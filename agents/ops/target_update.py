"""Target networks: parameters that follow the learned ones slowly or at intervals. Pure functions of parameter trees."""

import jax
import jax.numpy as jnp

from agents.api import Array, Params
from envpool_bridge.errors import UserError


def polyak(target: Params, online: Params, tau: float | Array) -> Params:
    """Returns the exponential average: `target + tau * (online - target)` of every leaf, in the leaf's dtype.

    Examples:
        >>> polyak({"w": jnp.array([0.0, 8.0])}, {"w": jnp.array([4.0, 8.0])}, tau=0.25)["w"].tolist()
        [1.0, 8.0]

    Source: Lillicrap et al. 2016 (arXiv:1509.02971), algorithm 1.

    Args:
        target: Parameters of the target network.
        online: Learned parameters, of the same structure.
        tau: Step size in [0, 1], a float or a scalar array. 0 keeps the target, 1 copies.
    """

    def follow(old: Array, new: Array) -> Array:
        # Not old + tau * (new - old): at tau = 1 that is only nearly a copy.
        return ((1.0 - tau) * old + tau * new).astype(old.dtype)

    return jax.tree.map(follow, target, online)


def periodic(target: Params, online: Params, num_gradient_steps: Array, period: int) -> Params:
    """Returns `online` after every `period`-th gradient step, `target` after the others.

    Examples:
        >>> old, new = jnp.array(1.0), jnp.array(2.0)
        >>> [float(periodic(old, new, jnp.array(step), period=3)) for step in (1, 2, 3, 4)]
        [1.0, 1.0, 2.0, 1.0]

    Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning", algorithm 1, where `period` is called C.

    Args:
        target: Parameters of the target network.
        online: Parameters after gradient step number `num_gradient_steps`, of the same structure.
        num_gradient_steps: int32 scalar, gradient steps taken so far: 1 after the first.
        period: Gradient steps from one copy to the next.

    Raises:
        UserError: `period` is not positive.
    """
    if period < 1:
        raise UserError(f"the period of a target network must be at least 1 gradient step: got {period}")
    due = num_gradient_steps % period == 0
    return jax.tree.map(lambda old, new: jnp.where(due, new, old), target, online)
