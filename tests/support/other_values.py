"""Other legal values of a configuration's fields, by their types."""

import dataclasses
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def other_values(hint: Any, value: Any) -> Iterator[Any]:
    """Values of the type `hint` that differ from `value`; the range of a field may exclude some."""
    if get_origin(hint) in (Union, types.UnionType):
        for kind in get_args(hint):
            if kind is type(None):
                yield from () if value is None else (None,)
            else:
                yield from other_values(kind, value)
    elif get_origin(hint) is Literal:
        yield from (choice for choice in get_args(hint) if choice != value)
    elif get_origin(hint) is tuple:
        yield from ((*(value or ()), 5), (*(value or ()), "a"), ((8, 3, 1), (4, 3, 1)))
    elif hint is str:
        yield f"{value}_"
    elif hint is bool:
        yield not value
    elif hint is int:
        start = value or 0
        yield from (start + 1, start * 2 + 2, max(1, start // 2), 3)
    elif hint is float:
        start = value or 0.0
        yield from (other for other in (start * 1.5, start * 0.5, 0.5, 0.1, 2.0) if other != value)


def changes(config: Any) -> Iterator[tuple[str, list[Any]]]:
    """Names of a configuration's fields, without nested configurations, and other values of each."""
    hints = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        if not dataclasses.is_dataclass(getattr(config, field.name)):
            yield field.name, list(other_values(hints[field.name], getattr(config, field.name)))
