"""The runs under a directory, found anew at every look: names in, files out. A name that was not found here opens nothing."""

import threading
from pathlib import Path

from envpool_bridge.errors import UserError
from jaxsrl.run_directory import CONFIG
from jaxsrl.runs.summary import RECORDS, iterate_runs, newest_change, run_name
from jaxsrl.web.run_files import RunFiles

_MOST_RUNS = 500


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
                f"there is no run in {root}: expected a run directory (with {CONFIG} or {RECORDS} in it), or a directory of runs"
            )

    def all(self) -> dict[str, RunFiles]:
        """All runs that are there now, the newest 500 of them, by name."""
        paths = sorted(iterate_runs(self.root), key=lambda path: newest_change(path) or 0.0, reverse=True)[:_MOST_RUNS]
        with self._lock:
            names = {run_name(path, self.root): path for path in paths}
            self._found = {
                name: self._found.get(name) or RunFiles(path)
                for name, path in sorted(names.items(), key=lambda x: x[0])
            }
            return dict(self._found)

    def get(self, name: str) -> RunFiles | None:
        """The run of this name, if it is one that was found."""
        with self._lock:
            return self._found.get(name)
