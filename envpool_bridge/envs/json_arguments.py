"""Arguments as data: mappings, NAME=VALUE fields, or the text of a JSON object. Configurations store them as JSON text."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from envpool_bridge.errors import UserError


def json_text(value: Any, name: str, may_be_list: bool = False) -> str:
    """Returns arguments as JSON text, the same for equal arguments in the same order.

    Args:
        value: mapping of JSON values, of which tuples become lists; NAME=VALUE fields separated by spaces; or JSON text.
        name: Name of the option, for messages.
        may_be_list: whether a list of mappings is accepted, too.

    Raises:
        UserError: If it is none of these.
    """
    data, kinds = value, (Mapping, list, tuple) if may_be_list else (Mapping,)
    if isinstance(value, str):
        data = read_arguments([value] if is_json(value) else shlex.split(value), name)
    problem = f"got {value!r}"
    try:
        if isinstance(data, kinds):
            return json.dumps(dict(data) if isinstance(data, Mapping) else data)
    except (ValueError, TypeError) as error:
        problem += f": {error}"
    expected = "NAME=VALUE fields, or a dict or JSON object" + " or list" * may_be_list
    raise UserError(f"{name}: expected {expected} of JSON values, {problem}")


def read_arguments(texts: Sequence[str], name: str) -> Any:
    """Returns the data of one JSON text, or the values of NAME=VALUE fields by name, each JSON or otherwise a string.

    Args:
        texts: Texts of a command line.
        name: Name of the option, for messages.

    Raises:
        UserError: If a text has another form.
    """
    try:
        if len(texts) == 1 and is_json(texts[0]):
            return json.loads(texts[0])
    except ValueError as error:
        raise UserError(f"{name}: expected a JSON object, got {texts[0]!r}: {error}") from error
    values: dict[str, Any] = {}
    for text in texts:
        field, separator, value = text.partition("=")
        if not field or not separator:
            raise UserError(f"{name}: expected NAME=VALUE fields, such as frame_skip=4, or a JSON object, got {text!r}")
        values[field] = read_value(value)
    return values


def read_value(text: str) -> Any:
    """Returns the value that the text is in JSON; otherwise the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def is_json(text: str) -> bool:
    """Returns whether the text is that of a JSON object or list, and not of NAME=VALUE fields."""
    return text.lstrip()[:1] in ("{", "[")
