"""Target networks: parameters that follow the learned ones slowly or at intervals. Pure functions."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from agents.api import Array, LearnerState, Params
from agents.ops.gradient_descent import descend
from envpool_bridge.errors import UserError


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TargetNetwork:
    """Learner state of a network with a target, apart from its parameters and optimizer.

    Attributes:
        target: Parameters of the target network.
        num_gradient_steps: int32 scalar, gradient steps taken so far.
    """

    target: Params
    num_gradient_steps: Array


def init_target(network: Params) -> TargetNetwork:
    """Returns the state before the first gradient step, when the target network is a copy of the network."""
    # Copied: the state is donated, and no buffer may occur in it twice.
    return TargetNetwork(jax.tree.map(jnp.copy, network), jnp.zeros((), jnp.int32))


def descend_with_target(
    optimizer: optax.GradientTransformationExtraArgs, gradient: Params, state: LearnerState, period: int
) -> LearnerState:
    """Returns the state after one gradient step, with the target network copied when due.

    Args:
        optimizer: Optimizer from `make_optimizer`.
        gradient: Gradient of the loss, by `state.params["network"]`.
        state: State, whose `extra` is a `TargetNetwork`; parameters other than "network" stay as they are.
        period: Gradient steps from one copy to the next.
    """
    count = state.extra.num_gradient_steps + 1
    network, opt_state = descend(optimizer, gradient, state.opt_state, state.params["network"], state.num_updates)
    extra = TargetNetwork(periodic(state.extra.target, network, count, period), count)
    return LearnerState({**state.params, "network": network}, opt_state, state.num_updates, extra)


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
