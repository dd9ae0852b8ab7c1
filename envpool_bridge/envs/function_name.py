"""Names of functions, for messages and saved configurations."""

from collections.abc import Callable
from functools import partial
from typing import Any


def function_name(function: Callable[..., Any]) -> str:
    """Returns a function's name as "module:qualname", the same in every process; for a partial, with its plain arguments.

    Examples:
        >>> function_name(partial(int, "7", base=8))
        "builtins:int('7', base=8)"
    """
    if isinstance(function, partial):
        named = [f"{name}={_plain(value)}" for name, value in function.keywords.items()]
        return f"{function_name(function.func)}({', '.join([*map(_plain, function.args), *named])})"
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def _plain(value: object) -> str:
    return repr(value) if isinstance(value, str | int | float | None) else "..."
