"""Hyper-parameters that change over a run, as pure functions of the number of updates."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from agents.api import Array
from envpool_bridge.errors import UserError

Kind = Literal["constant", "linear"]
Schedule = Callable[[Array], Array]
"""Function of `num_updates` (int32 scalar) that returns a float32 scalar."""


def make_schedule(kind: Kind, initial: float, total_updates: int) -> optax.Schedule:
    """Returns a function of `num_updates`: `initial` always, or falling linearly to 0 at `total_updates`.

    Examples:
        >>> rate = make_schedule("linear", initial=0.5, total_updates=4)
        >>> [float(rate(number)) for number in (0, 1, 4, 9)]
        [0.5, 0.375, 0.0, 0.0]

    Raises:
        UserError: A linear schedule has no total.
    """
    if kind == "constant":
        return optax.constant_schedule(initial)
    if total_updates < 1:
        raise UserError(f"a linear schedule needs the total number of updates: got {total_updates}")
    return optax.linear_schedule(initial, 0.0, total_updates)


def scale_by_schedule(rate: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """Scales updates by minus the learning rate of the update that they are part of.

    The rate is a function of the argument `num_updates` of the transformation's `update`. `optax.scale_by_schedule` counts the
    steps taken instead, which differs where steps are skipped or replicas share an optimizer.
    """

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None, **arguments: Any
    ) -> tuple[optax.Updates, optax.OptState]:
        del params
        factor = -jnp.asarray(rate(arguments["num_updates"]), jnp.float32)
        return jax.tree.map(lambda update: factor * update, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
