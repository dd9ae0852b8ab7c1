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
from jaxsrl.config.run_config import MAY_CHANGE
from jaxsrl.config.serialization import differences

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

    def validate(self, config: dict[str, Any]) -> None:
        """Compares a configuration with the one this directory was started with, if it was; writes no configuration.

        Raises:
            UserError: an option that may not change differs; lists every difference.
        """
        lines = [line for line in self._changes(config) if line.split(":")[0] not in MAY_CHANGE]
        if not lines:
            return
        listed = "\n  ".join(lines)
        problem = f"run directory {self.path} was started with another configuration:\n  {listed}\n"
        if not config["experiment"].get("run", {}).get("partial"):
            raise UserError(
                f"{problem}choose another --run.name, remove the directory to start over, or restore the arrays of its "
                f"checkpoint that fit (--run.partial)"
            )
        self.log(problem)

    def record(self, config: dict[str, Any], plan: Any) -> None:
        """Writes the configuration and the plan.

        Call it after the checkpoint has been restored, or at the start of a new run.

        Args:
            config: that `validate` has accepted.
            plan: as JSON data.
        """
        changes = self._changes(config)
        if changes:
            self.log("options that changed: " + ", ".join(changes))
        write_json(self.path / CONFIG, config)
        write_json(self.path / PLAN, plan)

    def _changes(self, config: dict[str, Any]) -> list[str]:
        if not (self.path / CONFIG).exists():
            return []
        old = read_json(self.path / CONFIG)
        return differences(old.get("experiment", {}), config["experiment"]) + differences(
            old.get("agent_name"), config["agent_name"], "agent"
        )

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
