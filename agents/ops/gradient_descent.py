"""One step of an optimizer, and steps that are taken more rarely than others."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from agents.api import Array, LearnerState, Metrics, OptState, Params


def descend(
    optimizer: optax.GradientTransformationExtraArgs,
    gradient: Params,
    opt_state: OptState,
    params: Params,
    num_updates: Array,
    rate_scale: Array | None = None,
) -> tuple[Params, OptState]:
    """Returns parameters and optimizer state after one step; both as they are where the gradient's norm is 0.

    That is the gradient of a batch in which no step counts. Momentum and weight decay would still move the parameters.

    Args:
        optimizer: Optimizer from `make_optimizer`, or with support for extra arguments.
        gradient: Gradient of the loss.
        opt_state: State of the optimizer.
        params: Parameters.
        num_updates: int32 scalar, of which learning rates are functions.
        rate_scale: Factor of the learning rate, a float32 scalar. None: 1.
    """
    scale = {} if rate_scale is None else {"rate_scale": rate_scale}
    step, moved_state = optimizer.update(gradient, opt_state, params, num_updates=num_updates, **scale)
    # Not ">": a gradient that is not a number is a step, which the learner then skips and reports.
    moves = optax.tree.norm(gradient) != 0.0
    moved = optax.apply_updates(params, step), moved_state
    return jax.tree.map(lambda new, old: jnp.where(moves, new, old), moved, (params, opt_state))


def step_when_due(
    step: Callable[[LearnerState], tuple[LearnerState, Metrics]],
    metrics: Callable[[LearnerState], Metrics],
    state: LearnerState,
    *,
    count: Array,
    period: int,
) -> tuple[LearnerState, Metrics]:
    """Returns `step(state)` where `count` is a multiple of `period`, else the state as it is and `metrics(state)`.

    Both compute metrics, because they are averaged over gradient steps.
    """
    if period == 1:
        return step(state)
    return jax.lax.cond(count % period == 0, step, lambda old: (old, metrics(old)), state)
