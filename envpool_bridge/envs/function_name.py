"""Names of functions, for messages and saved configurations."""

import ast
import importlib
import re
import sys
from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError

_NAME = re.compile(r"([\w.]+):([\w.]+)(\(.*\))?", re.DOTALL)
_PLAIN = str | int | float | None


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


def load_function(name: str) -> Any:
    """Imports the function or class of a `function_name`, which runs its module's code.

    Examples:
        >>> load_function("builtins:int('7', base=8)")()
        7

    Raises:
        UserError: another process cannot import it.
    """
    match = _NAME.fullmatch(name)
    try:
        if match is None:
            raise ValueError("it is no function of a module")
        module, path, arguments = match.groups()
        value: Any = importlib.import_module(module)
        value = reduce(getattr, path.split("."), value)
        if not arguments:
            return value
        values, named = _read_arguments(arguments)
        return partial(value, *values, **named)
    except (ImportError, AttributeError, ValueError, SyntaxError) as error:
        raise UserError(
            f"{name} cannot be imported ({error}): expected a function or class at the top level of a module on PYTHONPATH, and "
            f"plain arguments"
        ) from error


def _read_arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    call = ast.parse(f"f{text}", mode="eval").body
    if not isinstance(call, ast.Call) or "..." in map(
        ast.unparse, [*call.args, *(each.value for each in call.keywords)]
    ):
        raise ValueError("an argument is no plain value")
    named = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    return [ast.literal_eval(each) for each in call.args], named


def is_importable(function: Any) -> bool:
    """Returns whether `load_function` finds a function by its name in another process."""
    if isinstance(function, partial):
        plain = all(isinstance(value, _PLAIN) for value in [*function.args, *function.keywords.values()])
        return plain and is_importable(function.func)
    module: Any = sys.modules.get(getattr(function, "__module__", None) or "")
    try:
        if reduce(getattr, function.__qualname__.split("."), module) is not function:
            return False
        # Without a guard, the import of the main program would train again.
        return module is not sys.modules["__main__"] or "__name__" in Path(module.__file__ or "").read_text()
    except (AttributeError, OSError):
        return False


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
    return repr(value) if isinstance(value, _PLAIN) else "..."
