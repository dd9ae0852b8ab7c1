"""What a run left: the newest good checkpoint of its directory, or one checkpoint by itself."""

import dataclasses
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.store import MANIFEST, Arrays, CheckpointStore, load_checkpoint
from jaxsrl.run_directory import CONFIG


@dataclasses.dataclass(frozen=True)
class SavedRun:
    """A checkpoint's contents.

    Attributes:
        arrays: everything in it, by name.
        metadata: what describes the agent and the experiment.
        checkpoint: its directory.
        run_directory: it belongs to; None for a checkpoint that was copied elsewhere.
        problems: what is wrong with newer checkpoints of the run.
    """

    arrays: Arrays
    metadata: dict[str, Any]
    checkpoint: Path
    run_directory: Path | None
    problems: tuple[str, ...] = ()


def read_saved_run(path: Path) -> SavedRun:
    """Reads a run directory's newest good checkpoint, or one checkpoint directory.

    Raises:
        UserError: the path is neither.
        CorruptCheckpointError: the one checkpoint asked for is damaged.
    """
    if (path / MANIFEST).is_file():
        arrays, metadata = load_checkpoint(path)
        above = path.resolve().parent.parent
        return SavedRun(arrays, metadata, path, above if (above / "config.json").is_file() else None)
    # The run may be going on: only its own process may move damaged checkpoints out of the way.
    found = CheckpointStore(path / "checkpoints").restore_newest(quarantine=False) if path.is_dir() else None
    if found is None and (path / CONFIG).is_file():
        raise UserError(f"the run {path} has no checkpoint yet: let it train until the first one, or to its end")
    if found is None:
        raise UserError(
            f"{path} is no checkpoint and no run directory: expected a directory with {MANIFEST}, or one with "
            f"checkpoints/ in it (runs/<name>)"
        )
    update, arrays, metadata, problems = found
    return SavedRun(arrays, metadata, path / "checkpoints" / str(update), path, tuple(problems))
