"""Hyper-parameters that change over a run, as pure functions of the number of gradient steps."""

from typing import Literal

import optax

from envpool_bridge.errors import UserError

Kind = Literal["constant", "linear"]


def make_schedule(kind: Kind, initial: float, total_steps: int) -> optax.Schedule:
    """`initial` for ever, or falling linearly to 0 at `total_steps` gradient steps.

    Examples:
        >>> rate = make_schedule("linear", initial=0.5, total_steps=4)
        >>> [float(rate(step)) for step in (0, 1, 4, 9)]
        [0.5, 0.375, 0.0, 0.0]

    Raises:
        UserError: a linear schedule without a total.
    """
    if kind == "constant":
        return optax.constant_schedule(initial)
    if total_steps < 1:
        raise UserError(f"a linear schedule needs the total number of updates: got {total_steps}")
    return optax.linear_schedule(initial, 0.0, total_steps)
