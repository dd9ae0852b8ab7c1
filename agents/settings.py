"""Meaning of configuration fields: an algorithm's own values in nested configurations, and rejection of fields without effect."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Self

from envpool_bridge.errors import UserError

Unread = Iterable[tuple[Any, ...]]
"""Rules (condition, its description, names of the fields that are not read where it holds)."""


class Nested:
    """Base class of configurations in the fields of an algorithm's configuration, such as `optimizer` and `replay`.

    Fields that the constructor is not given have the algorithm's own values there, which `complete` sets. Elsewhere they have
    those of the class.
    """

    given: frozenset[str]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        names = [field.name for field in dataclasses.fields(cls)]  # pyright: ignore[reportArgumentType]
        object.__setattr__(self, "given", frozenset((*names[: len(args)], *kwargs)))
        return self

    def unread(self) -> Unread:
        """Returns the rules for fields without effect."""
        return ()


def complete(config: Any) -> None:
    """Sets the values that an algorithm's nested configurations were not given to its own; called by its `__post_init__`.

    Raises:
        UserError: A field has no effect by `unread` of its configuration, and not its default.
    """
    for field in dataclasses.fields(config):
        value, default = getattr(config, field.name), _default(field)
        if isinstance(value, Nested):
            names = [own.name for own in dataclasses.fields(default)]
            values = {name: getattr(value if name in value.given else default, name) for name in names}
            value = type(value)(**values)
            object.__setattr__(config, field.name, value)
            reject_unread(value, value.unread(), default, f"{field.name}.")
    if hasattr(config, "unread"):
        reject_unread(config, config.unread())


def reject_unread(config: Any, rules: Unread, default: Any = None, prefix: str = "") -> None:
    """Raises UserError where a field has no effect, and not its default.

    Args:
        config: Configuration with the fields.
        rules: Fields without effect.
        default: Configuration with their defaults; None for those of the class.
        prefix: Prefix of the fields' names in the message.
    """
    defaults = (
        {field.name: _default(field) for field in dataclasses.fields(config)} if default is None else vars(default)
    )
    for holds, reason, *names in rules:
        for name in names if holds else ():
            value, usual = getattr(config, name), defaults[name]
            if value != usual:
                raise UserError(f"{prefix}{name} {value!r} has no effect: {reason}; omit it, or use {usual!r}")


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
