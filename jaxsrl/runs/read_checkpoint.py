"""Reader of the newest intact checkpoint of a run, or of one checkpoint."""

import dataclasses
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.manifest import STEP
from jaxsrl.checkpoints.run_directory import CONFIG
from jaxsrl.checkpoints.store import MANIFEST, Arrays, CheckpointStore, load_in_use
from jaxsrl.models.store import MODELS, ModelStore


@dataclasses.dataclass(frozen=True)
class SavedRun:
    """Contents of a checkpoint.

    Attributes:
        arrays: all arrays by name.
        metadata: description of the agent and the experiment.
        checkpoint: directory of the checkpoint.
        run_directory: Run directory of the checkpoint; None for a checkpoint that was copied elsewhere.
        problems: why newer checkpoints of the run were skipped.
    """

    arrays: Arrays
    metadata: dict[str, Any]
    checkpoint: Path
    run_directory: Path | None
    problems: tuple[str, ...] = ()


def resolve_model(path: Path) -> Path:
    """Returns the directory that "RUN@QUERY" names, or the path itself if it names none.

    The query is that of `ModelStore.find`, or the update of a checkpoint of the run.

    Raises:
        UserError: If the run has no such model.
    """
    run, at, query = path.name.rpartition("@")
    if not at or path.exists():
        return path
    directory = path.with_name(run)
    if not directory.is_dir():
        raise UserError(f"no run directory {directory}: expected RUN or RUN@TAG, got {path}")
    if STEP.fullmatch(query) and (directory / "checkpoints" / query).is_dir():
        return directory / "checkpoints" / query
    return ModelStore(directory / MODELS).find(query).path


def read_saved_run(path: Path) -> SavedRun:
    """Reads the newest intact checkpoint of a run directory, one checkpoint directory, or a model of a run, "RUN@best".

    Raises:
        UserError: If the path is none of them.
        RemovedCheckpointError: If the run removed the given checkpoint meanwhile.
        CorruptCheckpointError: If the given checkpoint is damaged.
    """
    path = resolve_model(path)
    if (path / MANIFEST).is_file():
        arrays, metadata = load_in_use(path)
        above = path.resolve().parent.parent
        return SavedRun(arrays, metadata, path, above if (above / "config.json").is_file() else None)
    # The run may be training: only its own process may move damaged checkpoints.
    restored = CheckpointStore(path / "checkpoints").read_newest() if path.is_dir() else None
    if restored is None and (path / CONFIG).is_file():
        raise UserError(f"the run {path} has no checkpoint yet: let it train until the first one, or to its end")
    if restored is None:
        raise UserError(
            f"{path} is no checkpoint and no run directory: expected a directory with {MANIFEST}, or one with "
            f"checkpoints/ in it (runs/<name>)"
        )
    update, arrays, metadata, problems = restored
    return SavedRun(arrays, metadata, path / "checkpoints" / str(update), path, tuple(problems))
