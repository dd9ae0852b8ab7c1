"""Search and removal of resources of crashed runs. Resources of live runs are never touched.

Shared memory is unlinked at creation, and the kernel kills workers with their parent. Still, a process that is killed between two
system calls, during a checkpoint, or with its own Ray cluster leaves something behind.
"""

import contextlib
import dataclasses
import fcntl
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from jaxsrl.machine.doctor.cluster_files import cluster_parents, find_dead_clusters

_NAME = re.compile(r"(?:sem\.)?jaxsrl-(\d+)-[0-9a-f]+")
_UNFINISHED = re.compile(r"\.[0-9]+(\.replaced)?\.tmp")
_WORKER = b"envpool_bridge.supervisor.forkserver"
LOCK = ".lock"


@dataclasses.dataclass(frozen=True)
class Leftover:
    """Resource of a crashed run.

    Attributes:
        kind: "shared memory", "process", "unfinished checkpoint" or "files of a local cluster".
        what: Path or process number.
        removed: whether it was removed; never what belongs to another user.
    """

    kind: str
    what: str
    removed: bool = False


def find_leftovers(
    runs: Path,
    clean: bool,
    shared_memory: Path = Path("/dev/shm"),
    proc: Path = Path("/proc"),
    temporary: Sequence[Path] | None = None,
) -> list[Leftover]:
    """Finds all resources of crashed runs.

    Args:
        runs: directory of runs.
        clean: whether to remove them.
        shared_memory: directory of shared memory names.
        proc: directory of processes.
        temporary: parent directories of local clusters; None for the usual ones.
    """
    return [
        *_names(shared_memory, proc, clean),
        *_processes(proc, clean),
        *_checkpoints(runs, clean),
        *_clusters(cluster_parents() if temporary is None else temporary, proc, clean),
    ]


def _names(shared_memory: Path, proc: Path, clean: bool) -> Iterator[Leftover]:
    for path in sorted(shared_memory.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match is None or (proc / match[1]).exists():
            continue
        yield Leftover("shared memory", str(path), clean and _try_remove(path.unlink))


def _processes(proc: Path, clean: bool) -> Iterator[Leftover]:
    """Yields servers of workers, and workers, whose parent is gone: their parent is now process 1."""
    for path in sorted(proc.glob("[0-9]*")):
        try:
            command, status = (path / "cmdline").read_bytes(), (path / "stat").read_bytes()
        except OSError:
            continue  # ended meanwhile
        parent = status.rpartition(b")")[2].split()[1]
        # The last argument is the process that started the server. In a container, that may be process 1 itself.
        starter = command.rstrip(b"\0").rpartition(b"\0")[2]
        if _WORKER not in command or parent != b"1" or parent == starter:
            continue
        yield Leftover("process", path.name, clean and _try_remove(partial(os.kill, int(path.name), signal.SIGKILL)))


def _checkpoints(runs: Path, clean: bool) -> Iterator[Leftover]:
    """Yields partially written checkpoints of runs that are not locked."""
    for directory in sorted(runs.glob("*/checkpoints")):
        unfinished = [path for path in sorted(directory.glob("*")) if _UNFINISHED.fullmatch(path.name)]
        if not unfinished:
            continue
        if not (directory.parent / LOCK).exists():
            continue  # no run has written them
        with _try_lock(directory.parent / LOCK) as is_locked:
            if not is_locked:
                continue
            for path in unfinished:
                yield Leftover("unfinished checkpoint", str(path), clean and _try_remove(partial(shutil.rmtree, path)))


def _clusters(temporary: Sequence[Path], proc: Path, clean: bool) -> Iterator[Leftover]:
    for path in find_dead_clusters(temporary, proc):
        yield Leftover("files of a local cluster", str(path), clean and _try_remove(partial(shutil.rmtree, path)))


def _try_remove(remove: Callable[[], None]) -> bool:
    """Removes something; returns False if it may not be removed, so that the rest is still removed."""
    try:
        remove()
    except (FileNotFoundError, ProcessLookupError):
        return True  # it ended meanwhile
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _try_lock(lock: Path) -> Iterator[bool]:
    """Locks a run unless it is locked; yields whether it succeeded."""
    with contextlib.ExitStack() as held:
        try:
            may_write = os.access(lock if lock.exists() else lock.parent, os.W_OK)
            file = held.enter_context(open(lock, "a" if may_write else "r"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # it is locked, or may not be opened
            yield False
            return
        yield True
