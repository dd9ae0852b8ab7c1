"""Summaries of run directories, from files only: no jax, no checkpoint is opened, nothing is written."""

import dataclasses
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.manifest import list_steps
from jaxsrl.checkpoints.run_directory import CONFIG, LOG, NUM_UPDATES, read_json
from jaxsrl.config.run_config import OFFLINE_STEPS
from jaxsrl.metrics.record_file import RETURN, RecordFile
from jaxsrl.runs.control import TIMEOUT_SECONDS
from jaxsrl.runs.state import run_state
from jaxsrl.terminal.format import printable

RECORDS = "metrics.jsonl"
_NO_RUNS_INSIDE = frozenset({"checkpoints", "lost+found", "tensorboard", "wandb", "__pycache__", "node_modules"})
_DEPTH = 4
_LOG_BYTES = 4096
_RECENT_INTERVALS = 10  # of --metrics.interval-seconds


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """Summary of one run.

    Attributes:
        name: directory of the run, relative to the searched one.
        state: "running", "finished", "stopped" (by a signal), "crashed" or "empty".
        progress: fraction of updates done, 0 to 1; None if the configuration is missing.
        evaluation_return: mean return of the evaluation of the newest checkpoint in `eval.json`, in environment reward units:
            the result of a run; None without one.
        training_return: mean return of the newest record's last 100 episodes; None before the first episode.
        env: environment id.
        agent: name of the algorithm.
        plan: Name of the plan.
        seed: seed of the run.
        update: updates done, by records and checkpoints.
        num_updates: updates of the whole run; None if the configuration is missing.
        env_steps: environment steps done; gradient steps with plan `offline`.
        total_steps: those of the whole run; None if the configuration is missing.
        step_unit: "env steps", or "gradient steps" with plan `offline`.
        checkpoint: update of the newest complete checkpoint directory; None without any.
        age_seconds: time since the run last wrote a record or a line of its log.
        problem: Name of an unreadable file; "" if none.
        path: directory of the run.
    """

    name: str
    state: str
    progress: float | None
    evaluation_return: float | None
    training_return: float | None
    env: str
    agent: str
    plan: str
    seed: int | None
    update: int
    num_updates: int | None
    env_steps: int
    total_steps: int | None
    step_unit: str
    checkpoint: int | None
    age_seconds: float
    problem: str
    path: str


def find_runs(directory: Path) -> list[Path]:
    """Returns the run directories in `directory`, at most four levels down, or itself if it is one; sorted.

    Raises:
        UserError: If there is no such directory.
    """
    if not directory.is_dir():
        problem = (
            f"{directory} is a file" if directory.exists() else f"there is no directory {directory} in {Path.cwd()}"
        )
        raise UserError(
            f"{problem}: expected a run's directory, or one that has runs in it (runs/, or --run.directory)"
        )
    return sorted(iterate_runs(directory))


def iterate_runs(directory: Path, depth: int = _DEPTH, root: Path | None = None) -> Iterator[Path]:
    """Yields the directories of `find_runs` in any order, and unreadable ones, whose summaries say so.

    Links to runs elsewhere are runs; other links are not followed.

    Args:
        directory: a run, or a directory that has runs in it.
        depth: levels below it that are searched.
        root: directory in which a run that a link names is found without the link; None for `directory`.
    """
    root = directory if root is None else root
    try:
        entries = list(os.scandir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return  # removed meanwhile
    except OSError:
        yield directory
        return
    if any(entry.name in (CONFIG, RECORDS) for entry in entries):
        yield directory
        return
    for entry in entries if depth else ():
        may_have_runs = not entry.name.startswith(".") and entry.name not in _NO_RUNS_INSIDE
        if may_have_runs and entry.is_dir(follow_symlinks=False):
            yield from iterate_runs(Path(entry.path), depth - 1, root)
        elif may_have_runs and entry.is_symlink() and is_run(path := Path(entry.path)) and not _is_inside(path, root):
            yield path


def _is_inside(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root.resolve())


def run_name(run: Path, root: Path) -> str:
    """Returns the printable name of a run found in `root`: its relative path, or its directory's name if it is `root` itself."""
    return printable(root.resolve().name if run == root else run.relative_to(root).as_posix())


def is_run(directory: Path) -> bool:
    """Returns whether training has started in this directory."""
    try:
        return (directory / CONFIG).is_file() or (directory / RECORDS).is_file()
    except OSError:
        return False


def summarize(directory: Path, below: Path | None = None, now: float | None = None) -> RunSummary:
    """Returns the summary of a run, as far as its files exist.

    Args:
        directory: directory of the run.
        below: directory that names are relative to; None for the directory's own name.
        now: seconds since 1970; None for the clock's time.
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
        records.read_newest()
        if records.last(RETURN) is None:  # an earlier record may have it
            records = RecordFile(directory / RECORDS)
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
    """Returns the summary of a run from the records read so far.

    Args:
        directory: directory of the run.
        name: name of the run.
        config: contents of its config.json; {} if there are none.
        records: records of its training.
        problem: Name of an unreadable file.
        now: seconds since 1970; None for the clock's time.
    """
    experiment = as_dict(config.get("experiment"))
    run, env = as_dict(experiment.get("run")), as_dict(experiment.get("env"))
    seed = run.get("seed")
    checkpoint = max(checkpoint_steps(directory), default=None)
    update = max(int(records.last("update") or 0), checkpoint or 0)
    total, per_update = count_total_updates(config), _steps_per_update(run)
    now = time.time() if now is None else now
    age = max(0.0, now - (newest_change(directory) or now))
    return RunSummary(
        name=name,
        state=run_state(directory, last_log_lines(directory), update, total, age <= _recent_seconds(run)),
        progress=min(1.0, update / total) if total else None,
        evaluation_return=_evaluation_return(directory, update if checkpoint is None else checkpoint),
        training_return=records.last(RETURN),
        env=str(as_dict(config.get("env_spec")).get("env_id") or env.get("id") or ""),
        agent=str(config.get("agent_name") or ""),
        plan=str(run.get("plan") or ""),
        seed=seed if isinstance(seed, int) else None,
        update=update,
        num_updates=total,
        env_steps=update * per_update if per_update else int(records.last("env_steps") or 0),
        total_steps=total * per_update if total and per_update else None,
        step_unit="gradient steps" if _is_offline(run) else "env steps",
        checkpoint=checkpoint,
        age_seconds=age,
        problem=problem,
        path=str(directory),
    )


def checkpoint_steps(directory: Path) -> list[int]:
    """Returns the updates of complete checkpoint directories, oldest first, without verifying their contents."""
    try:
        return list_steps(directory / "checkpoints")
    except OSError:
        return []


def read_final_evaluation(run: Path, last_update: int) -> dict[str, Any]:
    """Returns the evaluation of a run after its last update, which `eval.json` holds.

    Raises:
        UserError: If it cannot be read, or is of another update.
    """
    path = run / "eval.json"
    evaluation = as_dict(read_json(path))
    update = evaluation.get("update", "unknown (an older version wrote it)")
    if update != last_update:
        raise UserError(
            f"{path} is of update {update}: expected the last one, {last_update}; run `jaxsrl evaluate {run}`"
        )
    return evaluation


def _evaluation_return(run: Path, update: int) -> float | None:
    try:
        return read_final_evaluation(run, update).get("mean_return")
    except UserError:
        return None


def last_log_lines(directory: Path, num_bytes: int = _LOG_BYTES) -> list[str]:
    """Returns the lines in the last `num_bytes` bytes of the run's log, oldest first."""
    try:
        with open(directory / LOG, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - num_bytes))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def count_total_updates(config: dict[str, Any]) -> int | None:
    """Returns the updates of a whole run, from the contents of its config.json; None if they are incomplete.

    The saved number counts, because the options do not say how many updates a budget of gradient steps takes.
    """
    if isinstance(saved := config.get(NUM_UPDATES), int):
        return saved
    run = as_dict(as_dict(config.get("experiment")).get("run"))
    per_update, steps = _steps_per_update(run), run.get("total_env_steps")
    if _is_offline(run):
        steps = run.get("gradient_steps") or OFFLINE_STEPS
    if not per_update or not isinstance(steps, int | float) or not abs(steps) < math.inf:
        return None
    return -(-int(steps) // per_update)


def _is_offline(run: dict[str, Any]) -> bool:
    return run.get("plan") == "offline"


def _steps_per_update(run: dict[str, Any]) -> int:
    """Returns the env steps of an update, or the gradient steps with plan `offline`; 0 if the configuration is incomplete."""
    if _is_offline(run):
        steps = as_dict(run.get("dataset")).get("gradient_steps_per_update")
        return steps if isinstance(steps, int) else 0
    sizes = run.get("num_envs"), run.get("rollout_length")
    return sizes[0] * sizes[1] if all(isinstance(size, int) for size in sizes) else 0  # pyright: ignore


def _recent_seconds(run: dict[str, Any]) -> float:
    """Returns the time in which a run that trains writes a record: one after each update or interval, whichever is longer.

    An update and a checkpoint may take as long as `jaxsrl control` waits for them.
    """
    interval = as_dict(run.get("metrics")).get("interval_seconds")
    return max(TIMEOUT_SECONDS, _RECENT_INTERVALS * interval if isinstance(interval, int | float) else 0.0)


def newest_change(directory: Path) -> float | None:
    """Returns when the run last wrote a record or its log, in seconds since 1970.

    Without either, it is the time of its configuration or directory; None for a missing directory.
    """
    written = [changed for name in (RECORDS, LOG, CONFIG) if (changed := _changed(directory / name)) is not None]
    return max(written, default=_changed(directory))


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def as_dict(value: Any) -> dict[str, Any]:
    """Returns a JSON object, or {} for what is none."""
    return value if isinstance(value, dict) else {}
