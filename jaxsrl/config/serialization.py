"""Conversion of configurations to and from JSON, and their differences."""

import dataclasses
from collections.abc import Mapping
from typing import Any, get_type_hints

from envpool_bridge.envs.function_name import function_name
from envpool_bridge.errors import UserError


def to_json(value: Any) -> Any:
    """Returns a dataclass tree as JSON data; functions become their names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return function_name(value) if callable(value) else value


def from_json(kind: type[Any], data: Mapping[str, Any]) -> Any:
    """Returns a dataclass `kind` from the result of `to_json`, with nested dataclasses; lists become tuples.

    Raises:
        UserError: If the data has a field that `kind`, or a nested dataclass, lacks.
    """
    known = {field.name for field in dataclasses.fields(kind)}
    unknown = sorted(set(data) - known)
    if unknown:
        raise UserError(
            f"{kind.__name__} has no field {', '.join(unknown)}: the file was written by another version of jaxsrl"
        )
    kinds = get_type_hints(kind)
    return kind(**{name: _value_from_json(kinds[name], value) for name, value in data.items()})


def _value_from_json(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
        return from_json(kind, value)
    return tuple(value) if isinstance(value, list) else value


def with_new_options(saved: Any, value: Any) -> Any:
    """Returns saved JSON data in which the fields of a dataclass tree that it lacks have their defaults.

    Options that did not exist when the data was written are such fields.

    Args:
        saved: result of `to_json`, of an earlier version.
        value: dataclass tree of this version, or a mapping of such trees.
    """
    if isinstance(value, Mapping) and isinstance(saved, Mapping):
        return {name: with_new_options(item, value.get(name)) for name, item in saved.items()}
    if not dataclasses.is_dataclass(value) or isinstance(value, type) or not isinstance(saved, Mapping):
        return saved
    complete = dict(saved)
    for field in dataclasses.fields(value):
        if field.name in complete:
            complete[field.name] = with_new_options(complete[field.name], getattr(value, field.name))
        elif field.default is not dataclasses.MISSING:
            complete[field.name] = to_json(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            complete[field.name] = to_json(field.default_factory())
    return complete


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Returns the differences of two JSON trees as "path: old -> new" lines; a part that one of them lacks is listed by its fields.

    Examples:
        >>> differences({"run": {"seed": 0, "name": "a"}}, {"run": {"seed": 1, "name": "a"}})
        ['run.seed: 0 -> 1']
    """
    return [f"{where}: {before!r} -> {after!r}" for where, before, after in changed_options(old, new, path)]


def changed_options(old: Any, new: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Returns (path, old value, new value) of the differences of two JSON trees; see `differences`."""
    if old and new is None and isinstance(old, dict):
        new = {}
    if new and old is None and isinstance(new, dict):
        old = {}
    if isinstance(old, dict) and isinstance(new, dict):
        changes: list[tuple[str, Any, Any]] = []
        for name in sorted(set(old) | set(new)):
            changes += changed_options(old.get(name), new.get(name), f"{path}.{name}" if path else name)
        return changes
    return [] if old == new else [(path, old, new)]
