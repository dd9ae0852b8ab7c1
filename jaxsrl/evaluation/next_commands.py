"""Commands that a run prints at its end: each works as it is printed."""

import dataclasses
import importlib.util
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.fingerprint import user_file
from envpool_bridge.envs.function_name import function_name, is_importable, script_name
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.checkpoints.run_directory import CONFIG, read_json
from jaxsrl.evaluation.load_agent import constructor, constructor_types, named_code


def format_end(directory: Path, experiment: Any, spec: EnvSpec, has_tensorboard: bool) -> str:
    """Returns the last lines of a run: its directory, and the commands that show, evaluate, record and export it.

    Args:
        directory: directory of the run.
        experiment: value that the run was made from.
        spec: Specification of the environment.
        has_tensorboard: whether the run wrote files for TensorBoard.
    """
    commands = _commands(directory, experiment, spec)
    if has_tensorboard and importlib.util.find_spec("tensorboard") is not None:
        commands.append(f"tensorboard --logdir {shlex.quote(str(directory))}")
    files = "checkpoints/ metrics.jsonl eval.json config.json plan.json log.txt"
    return "\n  ".join([f"run directory: {directory}", files, *commands])


def _commands(directory: Path, experiment: Any, spec: EnvSpec) -> list[str]:
    run, identity = shlex.quote(str(directory)), read_json(directory / CONFIG)
    if problem := _find_problem(experiment, identity):
        return [f"jaxsrl view {run}", f"other commands cannot load it: {problem}"]
    names = named_code(identity)
    before, after = _import_path(names), " --trust-env" if names else ""
    commands = [f"jaxsrl view {run}", f"{before}jaxsrl evaluate {run} --episodes 100{after}"]
    if not spec.agents:
        commands += [
            f"{before}jaxsrl record {run} --episodes 100 --out {run}/episodes{after}",
            f"{before}jaxsrl export {run} --out {run}/policy{after}",
        ]
    return commands


def _find_problem(experiment: Any, identity: dict[str, Any]) -> str:
    """Returns why no other process can make the agent or the environment; "" if one can."""
    env, make = getattr(experiment, "env", None), getattr(experiment, "make_agent", None)
    parts = {"environment": None if isinstance(env, EnvConfig) else env, "agent": make}
    for part, function in parts.items():
        if function is not None and not is_importable(function):
            return (
                f"its {part} is made by {function_name(function)}, which no other process can import: expected a function at the "
                f'top level of a module, with plain arguments (a script needs `if __name__ == "__main__":`)'
            )
    try:
        kinds = constructor(identity)[1:] if make is None else constructor_types(make)
        for value, kind in zip((experiment.agent, experiment.network), kinds, strict=True):
            if value is not None and (type(value) is not kind or not json.dumps(dataclasses.asdict(value))):
                raise TypeError
    except (AttributeError, TypeError, UserError):
        return (
            "its network or its configuration has parts made in Python, or a type that its function does not annotate"
        )
    return ""


def _import_path(names: list[str]) -> str:
    """Returns the assignment of PYTHONPATH by which a command imports modules that no package installs; "" without any."""
    known = [Path(place).resolve() for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    places = {place: None for name in names if (place := _directory(name.partition(":")[0])) and place not in known}
    if not places:
        return ""
    listed = os.pathsep.join(shlex.quote(os.path.relpath(place)) for place in places)
    return f"PYTHONPATH={listed}{':$PYTHONPATH' if known else ''} "


def _directory(module: str) -> Path | None:
    """Returns the directory from which a module is imported; None if a package installs it."""
    main = getattr(sys.modules["__main__"], "__file__", None)
    file = Path(main) if main and module == script_name() else user_file(module)
    if file is None:
        return None
    return file.resolve().parents[module.count(".") + (file.name == "__init__.py")]
