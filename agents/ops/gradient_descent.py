"""One step of an optimizer, and steps that are taken more rarely than others."""

from collections.abc import Callable

import jax
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
    """Returns parameters and optimizer state after one step.

    Args:
        optimizer: From `make_optimizer`, or with support for extra arguments.
        gradient: Of the loss.
        opt_state: State of the optimizer.
        params: Parameters.
        num_updates: int32 scalar, of which learning rates are functions.
        rate_scale: Factor of the learning rate, a float32 scalar. None: 1.
    """
    scale = {} if rate_scale is None else {"rate_scale": rate_scale}
    step, opt_state = optimizer.update(gradient, opt_state, params, num_updates=num_updates, **scale)
    return optax.apply_updates(params, step), opt_state


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
