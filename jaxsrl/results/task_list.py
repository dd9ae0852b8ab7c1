"""Results to make and published ones to compare them with, from TOML files."""

import dataclasses
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from envpool_bridge.errors import UserError
from jaxsrl.results.record import folder_name, validate_preset

TASKS, REFERENCES = "tasks.toml", "references.toml"
Entry = TypeVar("Entry")


@dataclasses.dataclass(frozen=True)
class TaskRuns:
    """Runs of one experiment on one task, which differ in the seed.

    Attributes:
        task: environment id.
        experiment: name of an experiment.
        flags: further flags, as on a command line.
        seeds: number of seeds, from 0.
        preset: name of these settings; "" for the experiment's name.
    """

    task: str
    experiment: str
    flags: str = ""
    seeds: int = 3
    preset: str = ""

    @property
    def name(self) -> str:
        """Name of the settings."""
        return self.preset or self.experiment

    def command(self, seed: int) -> list[str]:
        """Returns the arguments of `jaxsrl` that train one seed."""
        return [
            "train",
            self.experiment,
            "--env.id",
            self.task,
            *shlex.split(self.flags),
            "--run.seed",
            str(seed),
        ]

    def run_name(self, seed: int) -> str:
        """Returns the name of the run directory of one seed."""
        return f"{folder_name(self.task)}-{self.name}-s{seed}"

    def has_result(self, seed: int, results: Path) -> bool:
        """Returns whether the result of one seed is recorded below `results`."""
        return any((results / folder_name(self.task)).glob(f"*-{self.name}-s{seed}.json"))


@dataclasses.dataclass(frozen=True)
class Reference:
    """Published result.

    Attributes:
        task: environment id here.
        algorithm: name of the algorithm here.
        value: mean return.
        env_steps: env steps of training.
        source: name of the publication, with what differs, as the version of the environment.
        url: Address of the source.
    """

    task: str
    algorithm: str
    value: float
    env_steps: int
    source: str
    url: str


def read_tasks(directory: Path) -> list[TaskRuns]:
    """Returns the runs that tasks.toml lists.

    Raises:
        UserError: If the file is missing or has another form, an entry's name is invalid, or two entries have one name.
    """
    tasks = _read_entries(directory / TASKS, "runs", TaskRuns)
    names = [task.run_name(0) for task in tasks]
    for task in tasks:
        validate_preset(task.name)
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{directory / TASKS} has {names.count(name)} entries {name[:-3]}: give each a `preset`")
    return tasks


def read_references(directory: Path) -> list[Reference]:
    """Returns the published results that references.toml lists.

    Raises:
        UserError: If the file is missing or has another form.
    """
    return _read_entries(directory / REFERENCES, "references", Reference)


def _read_entries(path: Path, table: str, kind: Callable[..., Entry]) -> list[Entry]:
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    try:
        return [kind(**entry) for entry in data.get(table, [])]
    except TypeError as error:
        raise UserError(f"{path}: an entry of [[{table}]] has another form: {error}") from error
