"""What dead runs left behind, and taking it away. What is of a run that lives is never touched.

The names of shared memory are gone as soon as it is made and the kernel ends workers with their parent, so that there should be
nothing; a process that is killed between two system calls, in the middle of a checkpoint, or while it has a Ray cluster of its own,
leaves something all the same.
"""

import contextlib
import dataclasses
import fcntl
import os
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxsrl.doctor.cluster_files import cluster_parents, find_dead_clusters

_NAME = re.compile(r"(?:sem\.)?jaxsrl-(\d+)-[0-9a-f]+")
_UNFINISHED = re.compile(r"\.\d+(\.replaced)?\.tmp")
_WORKER = b"envpool_bridge.supervisor.forkserver"
LOCK = ".lock"


@dataclasses.dataclass(frozen=True)
class Leftover:
    """Something that a dead run left.

    Attributes:
        kind: "shared memory", "process", "unfinished checkpoint" or "files of a local cluster".
        what: its path, or its process number.
        removed: whether it is gone now.
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
    """Everything that dead runs left.

    Args:
        runs: directory of runs.
        clean: remove it.
        shared_memory: where names of shared memory are.
        proc: where processes are.
        temporary: where files of local clusters are; where runs put them if None.
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
        if clean:
            path.unlink(missing_ok=True)
        yield Leftover("shared memory", str(path), clean)


def _processes(proc: Path, clean: bool) -> Iterator[Leftover]:
    """Servers of workers whose main process is gone: they belong to the first process of the machine."""
    for path in sorted(proc.glob("[0-9]*")):
        try:
            command, status = (path / "cmdline").read_bytes(), (path / "stat").read_text()
        except OSError:
            continue  # ended since it was listed
        if _WORKER not in command or int(status.rpartition(")")[2].split()[1]) != 1:
            continue
        if clean:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.name), signal.SIGKILL)
        yield Leftover("process", path.name, clean)


def _checkpoints(runs: Path, clean: bool) -> Iterator[Leftover]:
    """Checkpoints that were being written when their run died; of runs whose lock nobody holds."""
    for directory in sorted(runs.glob("*/checkpoints")):
        unfinished = [path for path in sorted(directory.glob("*")) if _UNFINISHED.fullmatch(path.name)]
        if not unfinished:
            continue
        with _held(directory.parent / LOCK) as is_ours:
            if not is_ours:
                continue
            for path in unfinished:
                if clean:
                    shutil.rmtree(path)
                yield Leftover("unfinished checkpoint", str(path), clean)


def _clusters(temporary: Sequence[Path], proc: Path, clean: bool) -> Iterator[Leftover]:
    for path in find_dead_clusters(temporary, proc):
        if clean:
            shutil.rmtree(path)
        yield Leftover("files of a local cluster", str(path), clean)


@contextlib.contextmanager
def _held(lock: Path) -> Iterator[bool]:
    """Holds a run's lock if nobody else does; whether it does."""
    with open(lock, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
