"""A distribution policy by name: one of ours, or a user's own from a file or a module."""

import difflib
import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from envpool_bridge.errors import UserError
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.import_file import import_file
from jaxsrl.plan.plan import Plan
from jaxsrl.plan.policies import POLICIES, DistributionPolicy

_HOW = 'your own policy is "path/to/file.py:function" or "module:function"'


def load_policy(name: str) -> DistributionPolicy:
    """The policy that `name` stands for; a user's own is checked to return a Plan each time it is called.

    Examples:
        >>> plan = load_policy("serial")(RunConfig(num_envs=8), Resources(num_cores=2, platform="cpu", num_devices=1))
        >>> plan.policy, plan.num_rows
        ('serial', 8)

    Args:
        name: of POLICIES, "path/to/file.py:function" (relative to the working directory) or "module:function".

    Raises:
        UserError: no such name, file, module or function, or it cannot be called. What the user's file itself raises
            while it is imported comes out as it is, with its traceback.
    """
    if name in POLICIES:
        return POLICIES[name]
    place, colon, function = name.rpartition(":")
    if not colon:
        raise UserError(_unknown(name))
    if not place or not function:
        raise UserError(f"policy {name!r} lacks {'a function' if place else 'a file or module'}: {_HOW}")
    module = _from_file(name, Path(place)) if place.endswith(".py") else _from_module(name, place)
    return _checked(name, _find(name, module, function))


def _unknown(name: str) -> str:
    known = f"expected one of {', '.join(POLICIES)}; {_HOW}"
    if name.endswith(".py"):
        return f"policy {name!r} lacks a function: write {name}:function"
    close = difflib.get_close_matches(name, list(POLICIES), n=2)
    hint = f" did you mean {' or '.join(close)}?" if close else ""
    return f"unknown policy {name!r}:{hint} {known}"


def _from_file(name: str, path: Path) -> ModuleType:
    try:
        return import_file(path, "user_policy")
    except UserError as error:
        raise UserError(f"policy {name!r}: {error}; {_HOW}") from error


def _from_module(name: str, place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        # A package that the user's module imports and that is missing is the user's traceback to read, not ours to hide.
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise
        raise UserError(
            f"policy {name!r}: there is no module {error.name}: install it, or name a file: path/to/file.py:function"
        ) from error


def _find(name: str, module: ModuleType, function: str) -> Callable[..., object]:
    found = getattr(module, function, None)
    if found is None:
        functions = [word for word, value in vars(module).items() if callable(value) and not isinstance(value, type)]
        close = difflib.get_close_matches(function, functions, n=1)
        hint = (
            f"did you mean {close[0]}?"
            if close
            else "define it: def policy(run: RunConfig, resources: Resources) -> Plan"
        )
        raise UserError(f"policy {name!r}: there is no function {function} in {module.__file__}: {hint}")
    if not callable(found):
        raise UserError(
            f"policy {name!r}: {function} is {type(found).__name__}, not a function: "
            f"name one that takes (run: RunConfig, resources: Resources) and returns a Plan"
        )
    return found


def _checked(name: str, policy: Callable[..., object]) -> DistributionPolicy:
    def checked(run: RunConfig, resources: Resources) -> Plan:
        made = policy(run, resources)
        if not isinstance(made, Plan):
            raise UserError(
                f"policy {name!r} must return a jaxsrl.plan.plan.Plan: got {type(made).__name__}; "
                f"return Plan(policy=..., fragments=..., channels=..., shape=...)"
            )
        return made

    return checked
