"""Construction of the plan that a RunConfig names, by a built-in function or the user's own (MSRL's distribution policy)."""

import dataclasses
import difflib
import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from agents.api import AnyAgent, OnPolicy
from envpool_bridge.errors import UserError
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.import_file import import_file
from jaxsrl.plan.plan import Plan
from jaxsrl.plan.policies import PLANS, MakePlan

_HOW = 'your own plan is "path/to/file.py:function" or "module:function"'


def make_plan(config: RunConfig, resources: Resources | None = None, agent: AnyAgent | None = None) -> Plan:
    """Returns the plan named by `config.plan` for this configuration and these resources.

    Examples:
        >>> config = RunConfig(plan="serial", num_envs=8, rollout_length=16)
        >>> plan = make_plan(config, Resources(num_cores=2, platform="cpu", num_devices=1))
        >>> [fragment.name for fragment in plan.fragments], plan.num_rows, plan.shape.rollout_length
        (['environments', 'inference', 'learner'], 8, 16)

    Args:
        config: Configuration of the run. The plan fits this configuration only.
        resources: Resources of the machine of the run; None for this machine, which initializes its jax devices.
        agent: Agent to train, which decides the policy lag of a configuration that has none; without it that is 1.

    Raises:
        UserError: If there is no such plan, or it does not fit the resources.
    """
    if config.max_policy_lag is None:
        largest = None if agent is None else largest_lag(agent)
        config = dataclasses.replace(config, max_policy_lag=1 if largest is None else min(1, largest))
    return load_plan(config.plan)(config, Resources.detect() if resources is None else resources)


def largest_lag(agent: AnyAgent) -> int | None:
    """Returns the largest policy lag that the agent corrects, in updates; None for any."""
    return agent.data.max_lag if isinstance(agent.data, OnPolicy) else None


def load_plan(name: str) -> MakePlan:
    """Returns the function that makes the plan named `name`. The result of a user's own is checked to be a Plan at each call.

    Examples:
        >>> plan = load_plan("serial")(RunConfig(num_envs=8), Resources(num_cores=2, platform="cpu", num_devices=1))
        >>> plan.name, plan.num_rows
        ('serial', 8)

    Args:
        name: Name of PLANS, "path/to/file.py:function" (relative to the working directory) or "module:function".

    Raises:
        UserError: If there is no such name, file, module or function, or it is not callable. Exceptions of the user's file
            during its import are raised unchanged.
    """
    if name in PLANS:
        return PLANS[name]
    place, colon, function = name.rpartition(":")
    if not colon:
        raise UserError(_unknown(name))
    if not place or not function:
        raise UserError(f"plan {name!r} lacks {'a function' if place else 'a file or module'}: {_HOW}")
    module = _from_file(name, Path(place)) if place.endswith(".py") else _from_module(name, place)
    return _checked(name, _find(name, module, function))


def _unknown(name: str) -> str:
    known = f"expected one of {', '.join(PLANS)}; {_HOW}"
    if name.endswith(".py"):
        return f"plan {name!r} lacks a function: write {name}:function"
    close = difflib.get_close_matches(name, list(PLANS), n=2)
    hint = f" did you mean {' or '.join(close)}?" if close else ""
    return f"unknown plan {name!r}:{hint} {known}"


def _from_file(name: str, path: Path) -> ModuleType:
    try:
        return import_file(path, "user_plan")
    except UserError as error:
        raise UserError(f"plan {name!r}: {error}; {_HOW}") from error


def _from_module(name: str, place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        # A missing package that the user's module imports is raised with the user's traceback.
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise
        raise UserError(
            f"plan {name!r}: there is no module {error.name}: install it, or name a file: path/to/file.py:function"
        ) from error


def _find(name: str, module: ModuleType, function: str) -> Callable[..., object]:
    make = getattr(module, function, None)
    if make is None:
        functions = [word for word, value in vars(module).items() if callable(value) and not isinstance(value, type)]
        close = difflib.get_close_matches(function, functions, n=1)
        hint = (
            f"did you mean {close[0]}?"
            if close
            else "define it: def my_plan(run: RunConfig, resources: Resources) -> Plan"
        )
        raise UserError(f"plan {name!r}: there is no function {function} in {module.__file__}: {hint}")
    if not callable(make):
        raise UserError(
            f"plan {name!r}: {function} is {type(make).__name__}, not a function: "
            f"name one that takes (run: RunConfig, resources: Resources) and returns a Plan"
        )
    return make


def _checked(name: str, make: Callable[..., object]) -> MakePlan:
    def checked(run: RunConfig, resources: Resources) -> Plan:
        plan = make(run, resources)
        if not isinstance(plan, Plan):
            raise UserError(
                f"plan {name!r} must return a jaxsrl.plan.plan.Plan: got {type(plan).__name__}; "
                f"return Plan(name=..., fragments=..., channels=..., shape=...)"
            )
        return plan

    return checked
