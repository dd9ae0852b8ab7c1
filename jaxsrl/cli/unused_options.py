"""Rejection of options that would have no effect, and of misspelled ones of a command that passes others on."""

import dataclasses
import difflib
from collections.abc import Sequence
from typing import Any

from envpool_bridge.errors import UserError

_OF_EXPERIMENTS = ("--plan", "--config", "--help")
_NO_OPTIONS = ("experiment", "flags")
_CLOSE = 0.75  # as a ratio of difflib


def validate_unused(command: Any, names: Sequence[str], reason: str) -> None:
    """Rejects options that were given without effect.

    Args:
        command: dataclass of a command.
        names: fields that have no effect here.
        reason: why, as the start of the message.

    Raises:
        UserError: one of the fields differs from its default.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(command)}
    given = [_flag(name, getattr(command, name)) for name in names if getattr(command, name) != defaults[name]]
    if given:
        raise UserError(f"{reason}: omit {', '.join(given)}")


def validate_passed_on(name: str, command: Any, flags: Sequence[str]) -> None:
    """Rejects flags for the experiment that look like misspelled options of the command itself.

    Args:
        name: Name of the command.
        command: Dataclass of the command.
        flags: Flags that it does not define. Those of experiments have a dot, apart from --plan, --config and --help.

    Raises:
        UserError: If a flag is close to an option of the command, and no option of the experiment.
    """
    own = [
        f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(command) if field.name not in _NO_OPTIONS
    ]
    for flag in flags:
        given = flag.partition("=")[0].replace("_", "-")
        if not given.startswith("--") or "." in given or given in _OF_EXPERIMENTS:
            continue
        close = difflib.get_close_matches(given, own, n=1, cutoff=_CLOSE)
        if close and not _has_option(command.experiment, given):
            raise UserError(f"jaxsrl {name} has no option {given}: did you mean {close[0]}?")


def _has_option(experiment: str, given: str) -> bool:
    """Returns whether the class of an experiment, which a user may have derived, has this option; runs the experiment's file."""
    from jaxsrl.cli.find_experiment import find_experiment
    from jaxsrl.experiment import Experiment, load_experiment

    try:
        fields = dataclasses.fields(load_experiment(find_experiment(experiment)))
    except UserError:
        return False  # the advice helps all the same
    own = {field.name for field in fields} - {field.name for field in dataclasses.fields(Experiment)}
    name = given.removeprefix("--").replace("-", "_")
    return name in own or name.removeprefix("no_") in own


def _flag(name: str, value: Any) -> str:
    """Returns the option as it was given."""
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    values = value if isinstance(value, tuple) else (value,)
    return " ".join([f"--{name}", *map(str, values)])
