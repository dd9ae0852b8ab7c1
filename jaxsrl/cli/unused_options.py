"""Rejection of options that would have no effect next to others of the same command."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from envpool_bridge.errors import UserError


def validate_unused(command: Any, names: Sequence[str], reason: str) -> None:
    """Rejects options that were given without effect.

    Args:
        command: dataclass of a command.
        names: fields that have no effect here.
        reason: why, as the start of the message.

    Raises:
        UserError: one of the fields differs from its default.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(command)}
    given = [_flag(name, getattr(command, name)) for name in names if getattr(command, name) != defaults[name]]
    if given:
        raise UserError(f"{reason}: omit {', '.join(given)}")


def _flag(name: str, value: Any) -> str:
    """Returns the option as it was given."""
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    values = value if isinstance(value, tuple) else (value,)
    return " ".join([f"--{name}", *map(str, values)])
