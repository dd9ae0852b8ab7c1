"""Options of JSON objects: flags with NAME=VALUE fields or JSON text, and `--env.kwargs.frame_skip 4` for one entry."""

import json
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from envpool_bridge.envs.json_arguments import is_json, read_arguments, read_value
from envpool_bridge.errors import UserError

JSON_OPTIONS = frozenset(
    {"env.kwargs", "env.row_kwargs", "run.eval.env_kwargs"}
    | {f"policies.{name}" for name in ("mapping", "frozen", "agents", "networks")}
)
"""Options by their names in an Experiment whose values are JSON."""


def merge_json_flags(flags: Sequence[str], experiment: Any) -> list[str]:
    """Returns the flags with one flag of JSON text for each JSON object; fields replace entries of the experiment's.

    A value of a field is JSON, or otherwise a string.

    Raises:
        UserError: If a flag has no value, or one of another form.
    """
    others: list[str] = []
    objects: dict[str, str] = {}
    remaining = list(flags)
    while remaining:
        flag = remaining.pop(0)
        name, has_value, value = flag.removeprefix("--").partition("=")
        shown, entry = _split(name)
        text = objects[shown] if shown in objects else _current(experiment, shown) if flag.startswith("--") else None
        if text is None:
            others.append(flag)
            continue
        values = [value] if has_value else [remaining.pop(0)] if remaining else []
        while not (entry or is_json(values[-1]) if values else True) and _is_field(remaining):
            values.append(remaining.pop(0))
        objects[shown] = _changed(name, text, entry, values)
    return others + [part for shown, text in objects.items() for part in (f"--{shown}", text)]


def with_entries(text: str, entries: Mapping[str, Any]) -> str:
    """Returns a JSON object with some of its entries replaced; an empty list becomes an object.

    Raises:
        UserError: If the text is no JSON object, or an entry is not JSON.
    """
    try:
        return json.dumps({**(json.loads(text) or {}), **entries})
    except (ValueError, TypeError) as error:
        raise UserError(f"cannot set {', '.join(map(repr, entries))} of {text!r}: expected a JSON object") from error


def _split(name: str) -> tuple[str, str]:
    """Returns the option that a flag names, without its prefix `run.`, and the entry of it."""
    parts = name.split(".", 2)
    return ".".join([parts[0], *parts[1:2]]).replace("-", "_"), "".join(parts[2:])


def _current(experiment: Any, shown: str) -> str | None:
    """Returns the value of a JSON option; None if the flag is that of another option."""
    field = f"run.{shown}" if shown.startswith("eval.") else shown
    has_it = field in JSON_OPTIONS and (hasattr(experiment.env, "row_kwargs") or not shown.startswith("env."))
    return attrgetter(field)(experiment) if has_it else None


def _is_field(remaining: Sequence[str]) -> bool:
    return bool(remaining) and not remaining[0].startswith("--") and "=" in remaining[0]


def _changed(name: str, text: str, entry: str, values: Sequence[str]) -> str:
    """Returns the JSON text of an option after a flag."""
    if not values:
        raise UserError(f"expected a value after --{name}")
    if entry:
        return with_entries(text, {entry: read_value(values[0])})
    return values[0] if is_json(values[0]) else with_entries(text, read_arguments(values, f"--{name}"))
