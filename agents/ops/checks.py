"""Checks of hyper-parameters, for the `__post_init__` of configurations."""

from typing import Any

from envpool_bridge.errors import UserError


def validate_positive(config: Any, *names: str) -> None:
    """Raises UserError unless each of these fields is more than 0, or None."""
    for name in names:
        if getattr(config, name) is not None and not getattr(config, name) > 0.0:
            raise UserError(f"{name} must be positive: got {getattr(config, name)}")


def validate_not_negative(config: Any, *names: str) -> None:
    """Raises UserError unless each of these fields is at least 0, or None."""
    for name in names:
        if getattr(config, name) is not None and not getattr(config, name) >= 0.0:
            raise UserError(f"{name} must not be negative: got {getattr(config, name)}")


def validate_at_least_one(config: Any, *names: str) -> None:
    """Raises UserError unless each of these fields is at least 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise UserError(f"{name} must be at least 1: got {getattr(config, name)}")


def validate_fraction(config: Any, *names: str) -> None:
    """Raises UserError unless each of these fields lies in [0, 1]."""
    for name in names:
        if not 0.0 <= getattr(config, name) <= 1.0:
            raise UserError(f"{name} must lie in [0, 1]: got {getattr(config, name)}")
