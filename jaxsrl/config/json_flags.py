"""Entries of JSON objects: the flag `--env.kwargs.frame_skip 4`, or this option in a file, sets one entry of `env.kwargs`."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from envpool_bridge.errors import UserError

_FIELDS = ("env.kwargs", "policies.mapping", "policies.frozen", "policies.agents", "policies.networks")
JSON_OPTIONS = frozenset({*_FIELDS, "env.row_kwargs", "run.eval.env_kwargs"})
"""Options by their names in an Experiment whose values are JSON."""


def merge_json_flags(flags: Sequence[str], experiment: Any) -> list[str]:
    """Returns the flags with one flag for each JSON object, whose other entries are the experiment's.

    A value is JSON, or otherwise a string.

    Raises:
        UserError: a flag has no value, or changes an entry of what is no JSON object.
    """
    others: list[str] = []
    objects: dict[str, str] = {}
    remaining = iter(flags)
    for flag in remaining:
        name, has_value, value = flag.removeprefix("--").partition("=")
        field = next((field for field in _FIELDS if f"{name}.".startswith(f"{field}.")), None)
        if field is None or not flag.startswith("--"):
            others.append(flag)
            continue
        value = value if has_value else next(remaining, None)
        if value is None:
            raise UserError(f"expected a value after --{name}")
        entry = name.removeprefix(field).removeprefix(".")
        text = objects[field] if field in objects else attrgetter(field)(experiment)
        objects[field] = _set_entry(text, entry, value) if entry else value
    return others + [part for field, text in objects.items() for part in (f"--{field}", text)]


def with_entries(text: str, entries: Mapping[str, Any]) -> str:
    """Returns a JSON object with some of its entries replaced; an empty list becomes an object.

    Raises:
        UserError: the text is no JSON object, or an entry is not JSON.
    """
    try:
        return json.dumps({**(json.loads(text) or {}), **entries})
    except (ValueError, TypeError) as error:
        raise UserError(f"cannot set {', '.join(map(repr, entries))} of {text!r}: expected a JSON object") from error


def _set_entry(text: str, entry: str, value: Any) -> str:
    with contextlib.suppress(ValueError):
        value = json.loads(value)
    return with_entries(text, {entry: value})
