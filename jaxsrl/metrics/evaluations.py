"""Evaluations of versions of a run while it trains: one line each in `evaluations.jsonl`."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxsrl.metrics.atomic_append import AtomicAppendFile
from jaxsrl.metrics.record_file import ELAPSED, UPDATE, RecordFile
from jaxsrl.metrics.sinks import drop_torn_line

EVALUATIONS = "evaluations.jsonl"


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Results of whole episodes with the parameters of one version.

    Attributes:
        update: Update of the version.
        env_steps: env steps trained by then.
        frames: emulator frames by then.
        mode: "greedy" or "sample".
        mean_return: Mean return in environment reward units; of the agents that `--eval.agents` names, where a run has several.
        std_return: standard deviation over episodes.
        min_return: smallest.
        max_return: largest.
        mean_length: env steps of an episode.
        episodes: number of them.
        seed: Seed of environments and actions.
        seconds: wall-clock time that the episodes took.
        stage: Stage of the environments that a curriculum was at; None without one.
        agent_returns: mean return of each agent, by name; {} where a row is an environment.
        task_returns: mean return of each task, by name; {} where all rows are alike.
    """

    update: int
    env_steps: int
    frames: int
    mode: str
    mean_return: float
    std_return: float
    min_return: float
    max_return: float
    mean_length: float
    episodes: int
    seed: int
    seconds: float
    stage: int | None = None
    agent_returns: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    task_returns: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])

    def metrics(self) -> dict[str, float]:
        """Returns the values of curves, by name; those of sampled actions are below `eval/sample/`."""
        prefix = "eval/" if self.mode == "greedy" else f"eval/{self.mode}/"
        names = ("mean_return", "std_return", "min_return", "max_return", "mean_length")
        parts = {name: name.split("_") for name in names}
        values = {f"{prefix}{kind}_{of}": float(getattr(self, name)) for name, (of, kind) in parts.items()}
        values |= {f"{prefix}return/{name}": mean for name, mean in {**self.agent_returns, **self.task_returns}.items()}
        return values if self.stage is None else {**values, f"{prefix}stage": float(self.stage)}

    @property
    def rank(self) -> tuple[int, float]:
        """Returns what the better one of two evaluations has more of: the stage, then the mean return."""
        return self.stage or 0, self.mean_return


def append_evaluation(directory: Path, evaluation: Evaluation) -> None:
    """Adds a line to the file of a run directory; a partial last line of a killed process is removed before."""
    path = directory / EVALUATIONS
    file = AtomicAppendFile(path)
    try:
        drop_torn_line(path, file)
        file.append((json.dumps(dataclasses.asdict(evaluation)) + "\n").encode())
    finally:
        file.close()


def read_evaluations(directory: Path) -> list[Evaluation]:
    """Returns the evaluations of a run, in the order of its file; lines that are no evaluations are skipped."""
    path = directory / EVALUATIONS
    if not path.exists():
        return []
    parsed = [_parse(line) for line in path.read_bytes().split(b"\n")[:-1]]
    return [evaluation for evaluation in parsed if evaluation is not None]


def evaluation_columns(evaluations: Sequence[Evaluation], records: RecordFile) -> dict[str, np.ndarray]:
    """Returns the curves of evaluations by name, oldest version first: float64, NaN where a version has no such value.

    Args:
        evaluations: Evaluations of a run.
        records: Records of the same run; they give `elapsed_seconds` at the env steps of a version.
    """
    rows: dict[int, dict[str, float]] = {}
    for each in sorted(evaluations, key=lambda each: each.update):
        places = {UPDATE: float(each.update), "env_steps": float(each.env_steps), "frames": float(each.frames)}
        rows.setdefault(each.update, places).update(each.metrics())
    names = dict.fromkeys(name for row in rows.values() for name in row)
    columns = {name: np.array([row.get(name, np.nan) for row in rows.values()]) for name in names}
    env_steps, elapsed = records.copy_columns("env_steps", ELAPSED)
    if rows and env_steps:
        columns[ELAPSED] = np.interp(columns["env_steps"], env_steps, elapsed)
    return columns


def _parse(line: bytes) -> Evaluation | None:
    names = {field.name for field in dataclasses.fields(Evaluation)}
    try:
        return Evaluation(**{name: value for name, value in json.loads(line).items() if name in names})
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
