"""Options of a suite: a frozen dataclass of plain values, made from the JSON object of a configuration."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable
from typing import Any, TypeVar

from envpool_bridge.errors import UserError

Options = TypeVar("Options")


def options_of(kind: type[Options], suite: str, env_id: str, kwargs: dict[str, Any]) -> Options:
    """Returns the options given by `kwargs`, and defaults for the others.

    Args:
        kind: a frozen dataclass whose fields are bools, numbers, strings, Literals, tuples of them, or None.
        suite: Suite for messages.
        env_id: Environment id for messages.
        kwargs: values from JSON: lists stand for tuples.

    Raises:
        UserError: If an option is unknown (the message lists the known ones) or has another type, or the dataclass rejects
            its value.
    """
    hints = typing.get_type_hints(kind)
    for name, value in kwargs.items():
        if name not in hints:
            hint = did_you_mean(name, hints, 1, "; ") or "."
            raise UserError(
                f"{env_id} of suite {suite!r}: unknown option {name!r}{hint} Its options: {_shown_defaults(kind)}"
            )
        if not _fits(hints[name], value):
            raise UserError(
                f"{env_id} of suite {suite!r}: option {name} must be {_shown_hint(hints[name])}, got {value!r}"
            )
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in kwargs.items()}
    return kind(**given)


def did_you_mean(name: str, known: Iterable[str], most: int = 3, before: str = "") -> str:
    """Returns the question whether known names like an unknown one are meant, after `before`; "" if none is like it."""
    close = difflib.get_close_matches(name, list(known), n=most)
    return f"{before}did you mean {' or '.join(close)}?" if close else ""


def validate_at_least(least: int, **values: int) -> None:
    """Raises UserError for an option below `least`."""
    for name, value in values.items():
        if value < least:
            raise UserError(f"option {name} must be at least {least}, got {value}")


def _fits(hint: Any, value: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return any(_fits(choice, value) for choice in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple:
        same_length = isinstance(value, list | tuple) and len(value) == len(arguments)
        return same_length and all(map(_fits, arguments, value))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _shown_hint(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return " or ".join(map(_shown_hint, arguments))
    if origin is typing.Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin is tuple:
        return "[" + ", ".join(map(_shown_hint, arguments)) + "]"
    return "null" if hint is types.NoneType else {bool: "true or false", int: "an integer", float: "a number"}[hint]


def _shown_defaults(kind: Any) -> str:
    return ", ".join(f"{field.name} (default {field.default!r})" for field in dataclasses.fields(kind))
