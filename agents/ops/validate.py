"""Range checks of configuration fields. Every function names the first field that is out of range in a UserError.

Arrays pass `positive` and `not_negative`: an argument of a compiled program has no value yet.
"""

from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from envpool_bridge.errors import UserError


def at_least_one(config: Any, *names: str) -> None:
    """Raises UserError unless every named field is at least 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise UserError(f"{name} must be at least 1: got {getattr(config, name)}")


def positive(config: Any, *names: str, prefix: str = "") -> None:
    """Raises UserError unless every named field is positive or None. `prefix` comes before its name in the message."""
    for name in names:
        value = getattr(config, name)
        if isinstance(value, int | float | np.number) and not value > 0.0:
            raise UserError(f"{prefix}{name} must be positive: got {value}")


def not_negative(config: Any, *names: str) -> None:
    """Raises UserError unless every named field is at least 0 or None."""
    for name in names:
        value = getattr(config, name)
        if isinstance(value, int | float | np.number) and not value >= 0.0:
            raise UserError(f"{name} must not be negative: got {value}")


def fraction(config: Any, *names: str, above_zero: bool = False, below_one: bool = False, prefix: str = "") -> None:
    """Raises UserError unless every named field lies in [0, 1], without 0 if `above_zero` and without 1 if `below_one`.

    `prefix` comes before its name in the message.
    """
    for name in names:
        value = getattr(config, name)
        if not 0.0 <= value <= 1.0 or (above_zero and value == 0.0) or (below_one and value == 1.0):
            allowed = f"{'(' if above_zero else '['}0, 1{')' if below_one else ']'}"
            raise UserError(f"{prefix}{name} must lie in {allowed}: got {value}")


def uniform_replay(config: Any, name: str) -> None:
    """Raises UserError if windows are sampled by priority, whose bias algorithm `name` does not correct."""
    exponent = config.replay.priority_exponent
    if exponent:
        raise UserError(
            f"{name} has no importance weights for windows that are sampled by priority: expected replay.priority_exponent 0, "
            f"got {exponent}; use 0"
        )


def choices(config: Any, prefix: str = "") -> None:
    """Raises UserError where a field with a Literal type has another value. `prefix` comes before its name in the message."""
    for name, hint in get_type_hints(type(config)).items():
        allowed = get_args(hint)
        if get_origin(hint) is Literal and getattr(config, name) not in allowed:
            raise UserError(
                f"{prefix}{name} must be one of {', '.join(map(str, allowed))}: got {getattr(config, name)!r}"
            )


def random_updates(config: Any) -> None:
    """Raises UserError unless `random_updates` is None or at least 0."""
    if config.random_updates is not None and config.random_updates < 0:
        raise UserError(
            f"random_updates must not be negative, or None for all before the first gradient step: got "
            f"{config.random_updates}"
        )


def value_distribution(config: Any) -> None:
    """Raises UserError where the fields of a value distribution contradict each other (see `agents.dqn.DQNConfig`)."""
    kind = config.value_type
    if kind != "scalar" and config.num_atoms < 2:
        raise UserError(f"num_atoms must be at least 2 for a distribution: got {config.num_atoms}")
    if kind != "scalar" and config.value_rescale_epsilon is not None:
        raise UserError(f"value_rescale_epsilon needs value_type='scalar': got {kind!r}; set it to None")
    if kind == "c51" and not config.v_min < config.v_max:
        raise UserError(f"v_min must lie below v_max: got {config.v_min} and {config.v_max}")
    if kind == "quantile" and config.huber_delta is None:
        raise UserError("value_type='quantile' needs huber_delta, its kappa: got None; 1 is the paper's")
