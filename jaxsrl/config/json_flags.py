"""Flags for entries of JSON objects: `--env.kwargs.frame_skip 4` sets one entry of `--env.kwargs`."""

import contextlib
import json
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from envpool_bridge.errors import UserError

_FIELDS = ("env.kwargs", "policies.mapping", "policies.frozen", "policies.agents", "policies.networks")


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


def _set_entry(text: str, entry: str, value: Any) -> str:
    with contextlib.suppress(ValueError):
        value = json.loads(value)
    try:
        return json.dumps({**json.loads(text), entry: value})
    except (ValueError, TypeError) as error:
        raise UserError(f"cannot set {entry!r} of {text!r}: expected a JSON object") from error
