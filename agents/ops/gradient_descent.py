"""One step of an optimizer."""

import optax

from agents.api import Array, OptState, Params


def descend(
    optimizer: optax.GradientTransformationExtraArgs,
    gradient: Params,
    opt_state: OptState,
    params: Params,
    num_updates: Array,
) -> tuple[Params, OptState]:
    """Returns parameters and optimizer state after one step.

    Args:
        optimizer: From `make_optimizer`.
        gradient: Of the loss.
        opt_state: State of the optimizer.
        params: Parameters.
        num_updates: int32 scalar, of which learning rates are functions.
    """
    step, opt_state = optimizer.update(gradient, opt_state, params, num_updates=num_updates)
    return optax.apply_updates(params, step), opt_state
