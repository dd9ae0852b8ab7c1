"""A run's directory: locked while it runs, and all that a run leaves."""

import fcntl
import json
import os
import socket
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from envpool_bridge.errors import UserError
from jaxsrl.config import MAY_CHANGE, differences

CONFIG, PLAN, LOG, LOCK = "config.json", "plan.json", "log.txt", ".lock"


class RunDirectory:
    """One run's files. Process-safety: held by one process, through a lock that the kernel frees with it.

    Attributes:
        path: of the directory.
    """

    def __init__(self, path: Path) -> None:
        """Makes the directory and takes its lock.

        Raises:
            UserError: another process holds it, or it cannot be made.
        """
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = open(path / LOCK, "a+")  # noqa: SIM115  open as long as the run
        except OSError as error:
            raise UserError(
                f"cannot write the run directory {path}: {error.strerror}; choose --run.directory"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "another process"
            self._lock.close()
            raise UserError(
                f"run directory {path} is in use by {holder}: wait for it, or choose another --run.name"
            ) from error
        self._lock.truncate(0)
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        self._lock.write(f"process {os.getpid()} on {socket.gethostname()}, started {started}")
        self._lock.flush()

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints live."""
        return self.path / "checkpoints"

    def claim(self, config: dict[str, Any]) -> None:
        """Writes the configuration, or compares it with the one this directory was begun with.

        Raises:
            UserError: it differs in something that may not change, with every difference.
        """
        path = self.path / CONFIG
        if path.exists():
            old = read_json(path)
            lines = differences(old.get("experiment", {}), config["experiment"]) + differences(
                old.get("agent_name"), config["agent_name"], "agent"
            )
            lines = [line for line in lines if line.split(":")[0] not in MAY_CHANGE]
            if lines:
                listed = "\n  ".join(lines)
                problem = f"run directory {self.path} was begun with another configuration:\n  {listed}\n"
                if not config["experiment"].get("run", {}).get("partial"):
                    raise UserError(
                        f"{problem}choose another --run.name, remove the directory to start over, or take what still fits of its "
                        f"checkpoint (--run.partial)"
                    )
                self.log(problem)
        write_json(path, config)

    def log(self, line: str) -> None:
        """Appends a line to the log, with the time. A disk that is full takes no line, which is no reason not to train."""
        try:
            with open(self.path / LOG, "a") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
        except OSError as error:
            sys.stderr.write(f"cannot write {self.path / LOG} ({error.strerror}): {line}\n")

    def close(self) -> None:
        """Gives the lock back; idempotent."""
        self._lock.close()

    def __enter__(self) -> Self:
        """The directory itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Gives the lock back."""
        self.close()


def write_json(path: Path, data: Any) -> None:
    """Writes JSON so that a reader sees the old file or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(data, indent=1) + "\n")
    temporary.replace(path)


def read_json(path: Path) -> Any:
    """JSON of a file.

    Raises:
        UserError: it is missing or no JSON.
    """
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
