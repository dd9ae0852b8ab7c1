"""Runs and what they have come to, from the files they left: no jax, no checkpoint is opened, nothing is written."""

import dataclasses
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.run_directory import CONFIG, LOG, read_json
from jaxsrl.runs.records import RETURN, RecordFile
from jaxsrl.runs.state import run_state

RECORDS = "metrics.jsonl"
_NO_RUNS_INSIDE = frozenset({"checkpoints", "tensorboard", "wandb", "__pycache__", "node_modules"})
_DEPTH = 4
_LOG_BYTES = 4096


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """One run.

    Attributes:
        name: of its directory, below the one that was searched.
        state: "running", "finished", "stopped" (by a signal), "crashed" or "empty".
        progress: updates done of those wanted, 0 to 1; None if the configuration does not tell.
        best_return: largest mean return of a record, in environment reward units; None before the first episode.
        last_return: of the newest record.
        env: environment id.
        agent: name of the algorithm.
        policy: distribution policy.
        seed: of the run.
        update: updates done, as far as records and checkpoints tell.
        num_updates: updates wanted; None if the configuration does not tell.
        env_steps: environment steps done.
        checkpoint: update of the newest complete checkpoint directory; None without any.
        age_seconds: since the run last wrote a record or a line of its log.
        problem: what of it cannot be read; "" if nothing.
        path: its directory.
    """

    name: str
    state: str
    progress: float | None
    best_return: float | None
    last_return: float | None
    env: str
    agent: str
    policy: str
    seed: int | None
    update: int
    num_updates: int | None
    env_steps: int
    checkpoint: int | None
    age_seconds: float
    problem: str
    path: str


def find_runs(directory: Path) -> list[Path]:
    """The run directories in `directory`, at most four levels down, or itself if it is one; sorted.

    Raises:
        UserError: there is no such directory.
    """
    if not directory.is_dir():
        found = f"{directory} is a file" if directory.exists() else f"there is no directory {directory} in {Path.cwd()}"
        raise UserError(f"{found}: expected a run's directory, or one that has runs in it (runs/, or --run.directory)")
    return sorted(iterate_runs(directory))


def iterate_runs(directory: Path) -> Iterator[Path]:
    """As `find_runs`, in no order; of a directory that is not there, or not ours to read, none. No link is followed."""
    return _iterate_runs(directory, _DEPTH)


def run_name(run: Path, root: Path) -> str:
    """What a run is called among those that were found in `root`: its path from there; by itself, its directory's name."""
    return root.resolve().name if run == root else run.relative_to(root).as_posix()


def is_run(directory: Path) -> bool:
    """Whether training has begun in this directory."""
    return (directory / CONFIG).is_file() or (directory / RECORDS).is_file()


def summarize(directory: Path, below: Path | None = None, now: float | None = None) -> RunSummary:
    """What the run has come to; of a run that is only half there, what there is.

    Args:
        directory: of the run.
        below: its name is told from here; the directory's own if None.
        now: seconds since 1970; the clock's if None.
    """
    problem, config = "", {}
    try:
        config = read_json(directory / CONFIG)
        if not isinstance(config, dict):
            problem, config = f"{directory / CONFIG} is no JSON object", {}
    except UserError as error:
        problem = str(error)
    records = RecordFile(directory / RECORDS)
    try:
        records.refresh()
    except UserError as error:
        problem = problem or str(error)
    name = run_name(directory, directory if below is None else below)
    return summarize_records(directory, name, config, records, problem, now)


def summarize_records(
    directory: Path,
    name: str,
    config: dict[str, Any],
    records: RecordFile,
    problem: str = "",
    now: float | None = None,
) -> RunSummary:
    """What the run has come to, as far as its records are read.

    Args:
        directory: of the run.
        name: it is called.
        config: what its config.json says; {} if nothing.
        records: of its training.
        problem: what of it cannot be read.
        now: seconds since 1970; the clock's if None.
    """
    experiment = _dict(config.get("experiment"))
    run, env = _dict(experiment.get("run")), _dict(experiment.get("env"))
    seed = run.get("seed")
    checkpoint = max(checkpoint_steps(directory), default=None)
    update = max(int(records.last("update") or 0), checkpoint or 0)
    wanted, per_update = count_total_updates(run), _steps_per_update(run)
    now = time.time() if now is None else now
    return RunSummary(
        name=name,
        state=run_state(directory, last_log_lines(directory), update, wanted),
        progress=min(1.0, update / wanted) if wanted else None,
        best_return=records.best(RETURN),
        last_return=records.last(RETURN),
        env=str(_dict(config.get("env_spec")).get("env_id") or env.get("id") or ""),
        agent=str(config.get("agent_name") or ""),
        policy=str(run.get("policy") or ""),
        seed=seed if isinstance(seed, int) else None,
        update=update,
        num_updates=wanted,
        env_steps=update * per_update if per_update else int(records.last("env_steps") or 0),
        checkpoint=checkpoint,
        age_seconds=max(0.0, now - (newest_change(directory) or now)),
        problem=problem,
        path=str(directory),
    )


def checkpoint_steps(directory: Path) -> list[int]:
    """Updates at which the run has complete checkpoint directories, oldest first; not whether what is in them is whole."""
    try:
        return sorted(int(path.name) for path in (directory / "checkpoints").iterdir() if path.name.isdigit())
    except OSError:
        return []


def last_log_lines(directory: Path, num_bytes: int = _LOG_BYTES) -> list[str]:
    """The newest lines of the run's log, oldest first: the last so many bytes of it."""
    try:
        with open(directory / LOG, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - num_bytes))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def count_total_updates(run: dict[str, Any]) -> int | None:
    """Updates that a saved RunConfig asks for; None if it does not tell."""
    per_update, env_steps = _steps_per_update(run), run.get("env_steps")
    if not per_update or not isinstance(env_steps, int | float) or not abs(env_steps) < math.inf:
        return None
    return -(-int(env_steps) // per_update)


def _steps_per_update(run: dict[str, Any]) -> int:
    sizes = run.get("num_envs"), run.get("rollout_length")
    return sizes[0] * sizes[1] if all(isinstance(size, int) for size in sizes) else 0  # pyright: ignore


def newest_change(directory: Path) -> float | None:
    """When the run last wrote, in seconds since 1970: a record, its log, or a file in its directory if it has neither yet.

    None of a directory that is gone.
    """
    written = [changed for name in (RECORDS, LOG, CONFIG) if (changed := _changed(directory / name)) is not None]
    return max(written, default=_changed(directory))


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _iterate_runs(directory: Path, depth: int) -> Iterator[Path]:
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return  # gone, or not ours to read
    if any(entry.name in (CONFIG, RECORDS) for entry in entries):
        yield directory
        return
    for entry in entries if depth else ():
        may_have_runs = not entry.name.startswith(".") and entry.name not in _NO_RUNS_INSIDE
        if may_have_runs and entry.is_dir(follow_symlinks=False):
            yield from _iterate_runs(Path(entry.path), depth - 1)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
