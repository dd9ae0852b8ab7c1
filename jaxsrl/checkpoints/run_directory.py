"""Directory of a run: its lock and its files."""

import contextlib
import fcntl
import json
import logging
import os
import socket
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.manifest import list_steps
from jaxsrl.config.run_config import MAY_CHANGE
from jaxsrl.config.serialization import differences, with_new_options

CONFIG, PLAN, LOG, LOCK, PROVENANCE = "config.json", "plan.json", "log.txt", ".lock", "provenance.json"
_LOGGERS = ("jaxsrl", "envpool_bridge")
NUM_UPDATES = "num_updates"
"""Name of the budget in `CONFIG`, in updates: it may be smaller than that of the options."""
_locks: weakref.WeakSet[TextIO] = weakref.WeakSet()  # of this process


class RunDirectory:
    """Files of one run. Process-safety: one process holds the directory by a lock, which the kernel releases at its exit.

    The constructor creates the directory and takes the lock.

    Args:
        path: the directory.
        experiment: the value from which configurations are made. Its options that a stored configuration lacks, because they are
            newer, had their defaults. None if it is unknown.

    Attributes:
        path: the directory.

    Raises:
        UserError: another process holds it, or it cannot be created.
    """

    def __init__(self, path: Path, experiment: Any = None) -> None:
        self.path, self._experiment = path, experiment
        self._lock = lock_directory(path, "run directory", "--run.directory", "--run.name")

    @property
    def checkpoints(self) -> Path:
        """Directory of checkpoints."""
        return self.path / "checkpoints"

    def validate(self, config: dict[str, Any]) -> None:
        """Compares a configuration with the stored one, if there is one; writes nothing.

        Raises:
            UserError: If an option that may not change differs, or code that no package installs; lists every difference.
        """
        saving = config["experiment"].get("run", {}).get("checkpoint", {})
        if not (self.path / CONFIG).exists() and list_steps(self.checkpoints):
            raise UserError(
                f"{self.path} has checkpoints and no {CONFIG}, which says of what: put it back, or choose another --run.name"
            )
        code = [line for line in self._code_changes(config) if not saving.get("accept_changed_code")]
        lines = [line for line in self._changes(config) if line.split(":")[0] not in MAY_CHANGE]
        if not code and not lines:
            return
        listed = "\n  ".join([*lines, *code])
        problem = f"run directory {self.path} was started with another configuration:\n  {listed}\n"
        if not saving.get("partial_restore"):
            accept = ", continue it with changed code (--checkpoint.accept-changed-code)" if code and not lines else ""
            raise UserError(
                f"{problem}choose another --run.name, remove the directory to start over{accept}, or restore the arrays of its "
                f"checkpoint that fit (--checkpoint.partial-restore)"
            )
        self.log(problem)

    def record(self, config: dict[str, Any], plan: Any) -> str:
        """Writes the configuration and the plan; returns a line that lists what changed, or "".

        Call it after the checkpoint has been restored, or at the start of a new run.

        Args:
            config: configuration that `validate` has accepted.
            plan: plan as JSON data.
        """
        changes = [*self._changes(config), *self._code_changes(config)]
        if (self.path / CONFIG).exists():
            before, after = read_json(self.path / CONFIG).get(NUM_UPDATES), config.get(NUM_UPDATES)
            changes += (
                [f"schedules over the run take {after} updates instead of {before}"]
                if before and before != after
                else []
            )
        write_json(self.path / CONFIG, config)
        self.write_plan(plan)
        return "changed: " + ", ".join(changes) if changes else ""

    def validate_presence(self) -> None:
        """Raises UserError if the directory was removed or renamed; a checkpoint would start another one."""
        if not (self.path / CONFIG).exists():
            raise UserError(
                f"the run directory {self.path} was removed or renamed while the run trains: keep it in its place; "
                f"updates since its newest checkpoint are lost"
            )

    def write_plan(self, plan: Any) -> None:
        """Writes the plan, as JSON data."""
        write_json(self.path / PLAN, plan)

    def add_provenance(self, provenance: dict[str, Any]) -> None:
        """Appends the provenance of this process to those of the run, unless it equals the newest."""
        path = self.path / PROVENANCE
        earlier = read_json(path) if path.exists() else []
        if earlier[-1:] != [provenance]:
            lines = [line for old in earlier[-1:] for line in differences(old, provenance)]
            if changed := [line for line in lines if line.startswith(("commit", "source", "versions"))]:
                self.log("another version of the code: " + ", ".join(changed))
            write_json(path, [*earlier, provenance])

    def _changes(self, config: dict[str, Any]) -> list[str]:
        if not (self.path / CONFIG).exists():
            return []
        old = read_json(self.path / CONFIG)
        saved = with_new_options(old.get("experiment", {}), self._experiment)
        return differences(saved, config["experiment"]) + differences(
            old.get("agent_name"), config["agent_name"], "agent"
        )

    def _code_changes(self, config: dict[str, Any]) -> list[str]:
        """Returns a line for each function, module and value whose hash differs from the stored one."""
        if not (self.path / CONFIG).exists():
            return []
        old, new = (data.get("code", {}) for data in (read_json(self.path / CONFIG), config))
        names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
        return [
            f"code of {name}: {'new' if name not in old else 'changed' if name in new else 'gone'}" for name in names
        ]

    def log(self, line: str) -> None:
        """Appends a line to the log, with the time. If the disk is full, the line goes to stderr and training continues."""
        append_line(self.path / LOG, line)

    def close(self) -> None:
        """Releases the lock; idempotent."""
        self._lock.close()

    def __enter__(self) -> Self:
        """Returns the directory itself, whose log gets the warnings of this process too."""
        self._warnings = _Warnings(self.log)
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self._warnings)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Releases the lock."""
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(self._warnings)
        self.close()


class _Warnings(logging.Handler):
    """Appends warnings to the log of a run. They go to stderr too, as without a handler."""

    def __init__(self, log: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers and logging.lastResort is not None:
            logging.lastResort.handle(record)
        self._log(record.getMessage())


def append_line(path: Path, line: str) -> None:
    """Appends a line with the time to a log. If that fails, the line goes to stderr."""
    try:
        with open(path, "a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
    except OSError as error:
        sys.stderr.write(f"cannot write {path} ({error.strerror}): {line}\n")


class NullRunDirectory(RunDirectory):
    """The run directory at a learner process that does not write it: nothing is locked, made or written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _do_nothing(self, *args: Any, **options: Any) -> None:
        """Does nothing."""

    validate = write_plan = add_provenance = log = close = _do_nothing

    def record(self, config: dict[str, Any], plan: Any) -> str:
        """Returns that no code has changed, which the learner process that writes the run directory compares."""
        return ""


def lock_directory(path: Path, kind: str, place: str, name: str) -> TextIO:
    """Makes a directory if need be, locks it, and returns the open lock file, which holds the lock until it is closed.

    Args:
        path: the directory.
        kind: what it is, for messages.
        place: option that chooses a place that can be written.
        name: option that chooses another directory.

    Raises:
        UserError: another process holds the lock, or the directory cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = open(path / LOCK, "a+")  # noqa: SIM115  stays open while the directory is used
    except OSError as error:
        raise UserError(f"cannot write the {kind} {path}: {error.strerror}; choose {place}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        holder = lock.read().strip() or "another process"
        lock.close()
        raise UserError(f"{kind} {path} is in use by {holder}: wait for it, or choose another {name}") from error
    except OSError as error:  # Lustre without -o flock, some FUSE
        message = f"the file system cannot lock {path} ({error.strerror}): start no second process in this {kind}"
        sys.stderr.write(f"warning: {message}\n")
    _locks.add(lock)
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    try:
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}, started {started}")
        lock.flush()
    except OSError as error:  # a full disk
        with contextlib.suppress(OSError):
            lock.close()
        raise UserError(f"cannot write the {kind} {path}: {error.strerror}; choose {place}") from error
    return lock


def _close_locks() -> None:
    """Closes the copies of lock files in a forked process, which would hold the locks after the end of its parent."""
    for lock in list(_locks):
        lock.close()


os.register_at_fork(after_in_child=_close_locks)


def write_json(path: Path, data: Any) -> None:
    """Writes JSON atomically; see `write_text`."""
    write_text(path, json.dumps(data, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a file atomically: a reader sees the old file or the new one, also after a loss of power."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # what a full disk left of it


def read_json(path: Path) -> Any:
    """Reads JSON from a file.

    Raises:
        UserError: If it is missing or not JSON.
    """
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
