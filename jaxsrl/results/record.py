"""Result of one run as a small JSON file: results/TASK/ALGORITHM-PRESET-sSEED.json."""

import dataclasses
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.run_directory import CONFIG, PROVENANCE, read_json, write_text
from jaxsrl.metrics.record_file import ELAPSED, RecordFile
from jaxsrl.results.curve import training_curve
from jaxsrl.runs.state import FINISHED
from jaxsrl.runs.summary import RECORDS, as_dict, read_final_evaluation, summarize

_PRESET = re.compile(r"[\w.]+")  # hyphens separate it from its neighbors in file names
_PLACE = ("--run.directory", "--run.name")


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of one finished run. No field holds a path of the machine.

    Attributes:
        task: environment id.
        algorithm: name of the algorithm.
        preset: name of its settings; by default that of the experiment.
        seed: seed of the run.
        command: command that repeats the run, of its newest training process that has one; "" if unknown.
        env_steps: trained env steps.
        seconds: time that the processes of the run trained.
        commit: commits of the code, with "-dirty" after changed ones; "" if unknown.
        versions: version of each package.
        hardware: `cpu`, `cores` and `gpu`.
        evaluation: `mean_return`, `std_return` and `episodes` of greedy episodes with the final parameters.
        curve: `env_steps`, and `return_mean` of the training episodes that ended since the point before.
    """

    task: str
    algorithm: str
    preset: str
    seed: int
    command: str
    env_steps: int
    seconds: float
    commit: str
    versions: dict[str, str]
    hardware: dict[str, Any]
    evaluation: dict[str, float]
    curve: Mapping[str, Sequence[float]]

    @property
    def file(self) -> Path:
        """Path of the record below the directory of results."""
        return Path(folder_name(self.task), f"{self.algorithm}-{self.preset}-s{self.seed}.json")


def folder_name(task: str) -> str:
    """Returns a task's name in paths."""
    return task.replace("/", "-")


def validate_preset(preset: str) -> None:
    """Raises UserError if a name of settings cannot be part of a file's name."""
    if not _PRESET.fullmatch(preset):
        raise UserError(
            f"expected letters, digits, dots and underscores as name of the settings: got preset {preset!r}"
        )


def make_result(run: Path, preset: str = "") -> Result:
    """Returns the result of a finished run.

    Args:
        run: run directory.
        preset: name of the settings; "" for that of the experiment.

    Raises:
        UserError: If the run is not finished, was not evaluated greedily at its end in enough episodes, or lacks a file.
    """
    summary = summarize(run)
    if summary.problem:
        raise UserError(summary.problem)
    if summary.state != FINISHED:
        raise UserError(f"{run} is {summary.state}: expected a finished run; train it to its end first")
    if summary.seed is None:
        raise UserError(f"{run / CONFIG} has no seed: expected the file that a run writes at its start")
    provenance = read_json(run / PROVENANCE)
    commands = [portable_command(entry["command"]) for entry in reversed(provenance)]
    command = next(filter(None, commands), "")
    preset = preset or (command.split()[2] if command else "")
    validate_preset(preset)
    records = RecordFile(run / RECORDS)
    records.refresh()
    steps, means = training_curve(records)
    return Result(
        task=summary.env,
        algorithm=summary.agent,
        preset=preset,
        seed=summary.seed,
        command=command,
        env_steps=summary.env_steps,
        seconds=round(records.columns[ELAPSED][-1], 2),
        commit=", ".join(filter(None, dict.fromkeys(entry["commit"] for entry in provenance))),
        versions=provenance[-1]["versions"],
        hardware=provenance[-1]["hardware"],
        evaluation=_read_evaluation(run, summary.update),
        curve={"env_steps": steps, "return_mean": means},
    )


def portable_command(command: str) -> str:
    """Returns the command of a listed experiment without the place of its run; "" for other programs."""
    words = shlex.split(command)
    if words[:2] != ["jaxsrl", "train"] or len(words) < 3 or not _PRESET.fullmatch(words[2]):
        return ""
    kept, flags = words[:3], words[3:]
    while flags:
        name, _, value = flags.pop(0).partition("=")
        if name not in _PLACE:
            kept.append(f"{name}={value}" if value else name)
        elif not value and flags:
            flags.pop(0)
    return shlex.join(kept)


def _read_evaluation(run: Path, last_update: int) -> dict[str, float]:
    evaluation = read_final_evaluation(run, last_update)
    if not evaluation.get("greedy"):
        raise UserError(f"{run / 'eval.json'} is of sampled actions: run `jaxsrl evaluate {run}`")
    own = as_dict(as_dict(as_dict(read_json(run / CONFIG).get("experiment")).get("run")).get("eval")).get(
        "final_episodes"
    )
    if isinstance(own, int) and evaluation["episodes"] < own:
        raise UserError(
            f"{run / 'eval.json'} has {evaluation['episodes']} episodes, fewer than the run's eval.final_episodes: run "
            f"`jaxsrl evaluate {run} --episodes {own}`"
        )
    return {name: float(f"{evaluation[name]:.6g}") for name in ("mean_return", "std_return")} | {
        "episodes": evaluation["episodes"]
    }


def write_result(result: Result, directory: Path) -> Path:
    """Writes a result below `directory` and returns the file.

    Raises:
        UserError: If the file holds the result of another command, or cannot be written.
    """
    path = directory / result.file
    if path.exists() and (earlier := read_result(path)).command != result.command:
        raise UserError(
            f"{path} is of another command: expected {earlier.command!r}, got {result.command!r}; choose --preset, or remove it"
        )
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in dataclasses.asdict(result).items()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    return path


def read_result(path: Path) -> Result:
    """Reads one result.

    Raises:
        UserError: If the file is no result.
    """
    data = read_json(path)
    try:
        return Result(**data)
    except TypeError as error:
        raise UserError(
            f"{path} is no result of this version: {error}; make it again with `jaxsrl results add`"
        ) from error


def read_results(directory: Path) -> list[Result]:
    """Returns all results below a directory, sorted by task, algorithm, preset and seed."""
    results = [read_result(path) for path in directory.glob("*/*.json")]
    return sorted(results, key=lambda result: (result.task, result.algorithm, result.preset, result.seed))
