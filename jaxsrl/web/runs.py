"""Runs below a directory, searched at every request. Only names from a search open files."""

import threading
from pathlib import Path

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.run_directory import CONFIG
from jaxsrl.runs.summary import RECORDS, iterate_runs, newest_change, run_name
from jaxsrl.web.run_files import RunFiles

_MOST_RUNS = 500


class Runs:
    """Every run below a directory, by name: its relative path. Thread-safe.

    Attributes:
        root: the directory.
        num_found: number of runs that the last search found, which may be more than it returned.

    Raises:
        UserError: If the path is no directory, or contains no run.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            kind = "a file" if root.exists() else "not there"
            raise UserError(f"{root} is {kind}: expected a run directory, or a directory of runs such as runs/")
        self.root = root
        self.num_found = 0
        self._lock = threading.Lock()
        self._runs: dict[str, RunFiles] = {}
        if not self.all():
            raise UserError(
                f"there is no run in {root}: expected a run directory (with {CONFIG} or {RECORDS} in it), or a directory of runs"
            )

    def all(self) -> dict[str, RunFiles]:
        """Returns the newest 500 current runs by name."""
        paths = sorted(iterate_runs(self.root), key=lambda path: newest_change(path) or 0.0, reverse=True)
        self.num_found, paths = len(paths), paths[:_MOST_RUNS]
        with self._lock:
            names = {run_name(path, self.root): path for path in paths}
            self._runs = {
                name: self._runs.get(name) or RunFiles(path) for name, path in sorted(names.items(), key=lambda x: x[0])
            }
            return dict(self._runs)

    def get(self, name: str) -> RunFiles | None:
        """Returns the run of this name, if the last search had it."""
        with self._lock:
            return self._runs.get(name)
