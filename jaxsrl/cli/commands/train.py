"""`jaxsrl train`."""

import dataclasses
import json
import os
import sys
from pathlib import Path

import tyro

from envpool_bridge.errors import UserError
from jaxsrl.cli.find_experiment import find_experiment, list_experiments, read_summary
from jaxsrl.cli.unused_options import validate_unused
from jaxsrl.machine.python_command import python_command

_PROGRAM = "from jaxsrl.cli.run_script import run_script; run_script(sys.argv[1], sys.argv[2:])"
_SAME_EXPERIMENT = Path(__file__).resolve().parents[1] / "same_experiment.py"


@dataclasses.dataclass(frozen=True)
class Train:
    """Train an experiment, as `python experiments/NAME.py` does. Flags after it are the experiment's: NAME --help shows them.

    Attributes:
        experiment: name of one in experiments/, here or of the package, or the path of a Python file. With the config.json of
            a run it may be missing: the run's experiment is trained again.
        config: file of options, which flags override: a run's config.json, or .yaml or .toml with the nesting of the flags.
        list: show the available experiments without training.
        json: Whether --list prints one JSON object instead of a table.
        flags: Flags of the experiment's command line.
    """

    experiment: tyro.conf.Positional[str] = ""
    config: Path | None = None
    list: bool = False
    json: bool = False
    flags: tyro.conf.Suppress[tuple[str, ...]] = ()

    def run(self) -> int:
        """Replaces this process with the Python process that runs the file; returns only after --list."""
        if self.list:
            _show_experiments(self.json)
            return 0
        validate_unused(self, ("json",), "only --list prints JSON")
        name, flags = self.experiment, self.flags
        if self.config is not None:
            if flags and not flags[0].startswith("-"):  # --config FILE EXPERIMENT
                name, flags = flags[0], flags[1:]
            flags = ("--config", str(self.config), *flags)
        if not name and self.config is None:
            raise UserError(
                "expected the name or the file of an experiment: `jaxsrl train --list` shows all experiments"
            )
        path = find_experiment(name) if name else _SAME_EXPERIMENT
        sys.stdout.flush()
        sys.stderr.flush()
        # This process, not one of its children, becomes the experiment: signals, exit status, terminal and the main module
        # that environment processes look classes up in are those of `python FILE`.
        command = python_command(_PROGRAM, str(path), *flags)
        os.execv(command[0], command)


def _show_experiments(as_json: bool) -> None:
    experiments = {name: {"file": str(path), "about": read_summary(path)} for name, path in list_experiments().items()}
    if as_json:
        print(json.dumps(experiments))  # noqa: T201
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False)
    for name, about in experiments.items():
        table.add_row(f"[bold]{name}[/bold]", about["about"])
    Console(file=sys.stdout).print(table)
