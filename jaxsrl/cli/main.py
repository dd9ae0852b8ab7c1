"""The `jaxsrl` command: train, evaluate, inspect and compare runs, without writing code.

`eval "$(jaxsrl --tyro-write-completion bash -)"` completes commands and flags in bash; zsh, tcsh and fish likewise.

Exit status: 0 for success; 1 for a problem (a damaged checkpoint, or one that the doctor reports); 2 for an invalid request.
"""

import contextlib
import dataclasses
import difflib
import io
import os
import signal
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol, Union

import tyro

from envpool_bridge.errors import UserError
from jaxsrl.bench.command import BenchCommand
from jaxsrl.checkpoints.manifest import CorruptCheckpointError
from jaxsrl.cli.commands.arena import Arena
from jaxsrl.cli.commands.config import ShowConfig
from jaxsrl.cli.commands.control import Control
from jaxsrl.cli.commands.dataset import DatasetCommand
from jaxsrl.cli.commands.doctor import Doctor
from jaxsrl.cli.commands.evaluate import Evaluate
from jaxsrl.cli.commands.export import Export
from jaxsrl.cli.commands.inspect import Inspect
from jaxsrl.cli.commands.league import TrainLeague
from jaxsrl.cli.commands.models import Models
from jaxsrl.cli.commands.new import New
from jaxsrl.cli.commands.plan import ShowPlan
from jaxsrl.cli.commands.plot import Plot
from jaxsrl.cli.commands.population import TrainPopulation
from jaxsrl.cli.commands.psro import TrainPSRO
from jaxsrl.cli.commands.record import Record
from jaxsrl.cli.commands.record_sets import RecordSets
from jaxsrl.cli.commands.results import Results
from jaxsrl.cli.commands.runs import Runs
from jaxsrl.cli.commands.train import Train
from jaxsrl.cli.commands.tune import Tune
from jaxsrl.cli.commands.view import View
from jaxsrl.cli.unused_options import validate_passed_on
from jaxsrl.machine.lifecycle import exit_on_user_error
from jaxsrl.machine.package_names import raise_conflict


class Command(Protocol):
    """A frozen dataclass in jaxsrl/cli/commands/. A field `flags` receives the flags that the command does not define."""

    def run(self) -> int:
        """Runs the command and returns the exit status. Heavy imports are inside, so that --help is fast."""
        ...


COMMANDS: dict[str, type[Command]] = {
    "train": Train,
    "tune": Tune,
    "population": TrainPopulation,
    "psro": TrainPSRO,
    "league": TrainLeague,
    "config": ShowConfig,
    "new": New,
    "runs": Runs,
    "plot": Plot,
    "results": Results,
    "view": View,
    "control": Control,
    "evaluate": Evaluate,
    "arena": Arena,
    "record": Record,
    "record-sets": RecordSets,
    "dataset": DatasetCommand,
    "inspect": Inspect,
    "models": Models,
    "export": Export,
    "plan": ShowPlan,
    "bench": BenchCommand,
    "doctor": Doctor,
}
"""Commands by name, in the order of --help."""

_MEMORY_SETTINGS = ("XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_ALLOCATOR")


@exit_on_user_error
def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command of the arguments, by default those of the command line.

    Raises:
        SystemExit: If the command's status is not 0, with it; 1 for a damaged checkpoint; 2 for an invalid request; 130 after
            Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.closed:
            stream.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    try:
        command = parse(sys.argv[1:] if arguments is None else arguments)
        if not isinstance(command, Doctor):  # which reports it
            raise_conflict()
        if not isinstance(command, (Train, BenchCommand)):
            _share_accelerator(os.environ)
        # A call in a process that has threads must not fork.
        with _reported(command) if arguments is None else contextlib.nullcontext():
            status = command.run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(128 + signal.SIGINT)
    except CorruptCheckpointError as error:
        print(f"error: damaged checkpoint {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            raise
        raise UserError(f"cannot read or write {error.filename}: {error.strerror}") from error
    if status:
        sys.exit(status)


def _reported(command: Command) -> contextlib.AbstractContextManager[None]:
    """Returns a context that reports if Ray ends the process of a command that runs on a cluster."""
    if getattr(command, "runs_on", "here") == "here" and not getattr(command, "serve", ""):
        return contextlib.nullcontext()
    from jaxsrl.checkpoints.run_directory import LOG
    from jaxsrl.cluster.reported_end import reported_end

    directory: Path = getattr(command, "directory", None) or getattr(command, "run_directory", Path())
    return reported_end(directory / LOG)


def _share_accelerator(environment: MutableMapping[str, str]) -> None:
    """Makes jax allocate device memory on demand, unless the user set it, since a run may use most of the memory."""
    if not any(name in environment for name in _MEMORY_SETTINGS):
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"


def parse(arguments: Sequence[str]) -> Command:
    """Returns the command of a command line.

    Raises:
        UserError: If there is no such command, or an option looks like a misspelled one of a command that passes flags on.
        SystemExit: If the command line is otherwise invalid (2), or requests --help (0).
    """
    arguments = [*(name.replace("_", "-") for name in arguments[:1]), *arguments[1:]]
    if arguments and arguments[0] not in COMMANDS and not arguments[0].startswith("-"):
        raise UserError(f"there is no command {arguments[0]!r}: {_suggest_command(arguments[0])}")
    kind = COMMANDS.get(arguments[0]) if arguments else None
    settings: dict[str, Any] = {"prog": "jaxsrl", "description": __doc__}
    if not takes_flags(kind):
        return tyro.cli(_any_command(), args=arguments, **settings)
    if kind in (Train, BenchCommand):  # the experiment or benchmark has its own --help
        own, flags = _split_after_name(arguments[1:])
        command = tyro.cli(_any_command(), args=[arguments[0], *own], **settings)
    else:
        command, flags = tyro.cli(_any_command(), args=arguments, return_unknown_args=True, **settings)
        validate_passed_on(arguments[0], command, flags)
    return dataclasses.replace(command, flags=tuple(flags))


def _split_after_name(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Returns the command's own arguments, which end with the first that is no flag, and the others."""
    named = next((i for i, argument in enumerate(arguments) if not argument.startswith("-")), len(arguments))
    return arguments[: named + 1], arguments[named + 1 :]


def takes_flags(command: type[Command] | None) -> bool:
    """Returns whether flags that the command does not define are passed to an experiment or benchmark."""
    return command is not None and "flags" in getattr(command, "__dataclass_fields__", {})


def _suggest_command(word: str) -> str:
    """Returns a hint at commands like `word`, or at the list of all."""
    close = difflib.get_close_matches(word, COMMANDS, n=3)
    return f"did you mean {' or '.join(close)}?" if close else "`jaxsrl --help` lists the commands"


def _any_command() -> Any:
    return Union[tuple(Annotated[command, tyro.conf.subcommand(name)] for name, command in COMMANDS.items())]  # noqa: UP007


if __name__ == "__main__":
    main()
