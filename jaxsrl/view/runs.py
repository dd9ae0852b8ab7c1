"""The runs under a directory, found anew at every look: names in, files out. A name that was not found here opens nothing."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

from envpool_bridge.errors import UserError
from jaxsrl.run_directory import CONFIG
from jaxsrl.view.run_files import METRICS, RunFiles

_NO_RUNS_INSIDE = frozenset({"checkpoints", "tensorboard", "wandb", "__pycache__", "node_modules"})
_MAX_DEPTH, _MOST_RUNS = 4, 500


class Runs:
    """Every run under a directory, by name: its path from there. Thread-safe.

    Attributes:
        root: the directory as it was asked for; of one run, or of many.
    """

    def __init__(self, root: Path) -> None:
        """Looks for runs.

        Raises:
            UserError: the path is no directory, or has no run in it.
        """
        if not root.is_dir():
            kind = "a file" if root.exists() else "not there"
            raise UserError(f"{root} is {kind}: expected a run directory, or a directory of runs such as runs/")
        self.root = root
        self._lock = threading.Lock()
        self._found: dict[str, RunFiles] = {}
        if not self.all():
            raise UserError(
                f"there is no run in {root}: expected a run directory (with {CONFIG} or {METRICS} in it), or a directory of runs"
            )

    def all(self) -> dict[str, RunFiles]:
        """All runs that are there now, the newest 500 of them, by name."""
        paths = sorted(_run_directories(self.root, 0), key=_changed, reverse=True)[:_MOST_RUNS]
        with self._lock:
            names = {self._name(path): path for path in paths}
            self._found = {
                name: self._found.get(name) or RunFiles(path)
                for name, path in sorted(names.items(), key=lambda x: x[0])
            }
            return dict(self._found)

    def get(self, name: str) -> RunFiles | None:
        """The run of this name, if it is one that was found."""
        with self._lock:
            return self._found.get(name)

    def _name(self, path: Path) -> str:
        return self.root.resolve().name if path == self.root else path.relative_to(self.root).as_posix()


def _run_directories(directory: Path, depth: int) -> Iterator[Path]:
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return  # gone, or not ours to read
    names = {entry.name for entry in entries}
    if CONFIG in names or METRICS in names:
        yield directory
        return
    if depth == _MAX_DEPTH:
        return
    for entry in entries:
        is_hidden = entry.name.startswith(".") or entry.name in _NO_RUNS_INSIDE
        if not is_hidden and entry.is_dir(follow_symlinks=False):
            yield from _run_directories(Path(entry.path), depth + 1)


def _changed(directory: Path) -> float:
    for name in (METRICS, CONFIG):
        try:
            return (directory / name).stat().st_mtime
        except OSError:
            continue
    return 0.0
