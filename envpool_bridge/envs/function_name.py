"""Names of functions, for messages and saved configurations."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any


def function_name(function: Callable[..., Any]) -> str:
    """Returns a function's name as "module:qualname"; for a partial, with its plain arguments.

    The module of the main program is that of its file, by which another process imports it.

    Examples:
        >>> function_name(partial(int, "7", base=8))
        "builtins:int('7', base=8)"
    """
    if isinstance(function, partial):
        named = [f"{name}={_plain(value)}" for name, value in function.keywords.items()]
        return f"{function_name(function.func)}({', '.join([*map(_plain, function.args), *named])})"
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{_module_name(named.__module__)}:{named.__qualname__}"


def script_name() -> str:
    """Returns the name of the main program's file; "" for a program of a package, and in a notebook."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None) or ""
    is_package = getattr(main, "__spec__", None) is not None or not {"site-packages", "bin"}.isdisjoint(
        Path(file).parts
    )
    return "" if is_package else Path(file).stem


def _module_name(name: str) -> str:
    file = getattr(sys.modules.get(name), "__file__", None) if name == "__main__" else None
    return Path(file).stem if file else name


def _plain(value: object) -> str:
    return repr(value) if isinstance(value, str | int | float | None) else "..."
