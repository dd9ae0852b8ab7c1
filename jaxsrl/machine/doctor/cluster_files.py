"""Directories of local Ray clusters (`jaxsrl.cluster.ray.local_cluster`) of crashed runs. Other runs remove theirs."""

import os
import re
import socket
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_NAME = re.compile(r"jaxsrl-ray-[a-z0-9_]{8}")  # as tempfile.mkdtemp makes it
_SURELY_STARTED_SECONDS = 60.0


def cluster_parents() -> list[Path]:
    """Returns the parent directories of clusters: the temporary directory, or /tmp where its path is too long."""
    return sorted({Path(tempfile.gettempdir()), Path("/tmp")})


def find_dead_clusters(places: Sequence[Path], proc: Path) -> Iterator[Path]:
    """Yields directories of this user that no living process uses.

    Every process of a cluster names its directory on its command line. Those of another container are not in `proc`, but they
    answer on the sockets in a directory that both share. Directories younger than a minute are skipped: their first process may
    be about to start.
    """
    candidates = [path for place in places for path in sorted(place.glob("jaxsrl-ray-*")) if _is_old_and_ours(path)]
    commands = list(_commands(proc)) if candidates else []
    for path in candidates:
        if not any(os.fsencode(path.name) in command for command in commands) and not _is_served(path):
            yield path


def _is_old_and_ours(path: Path) -> bool:
    try:
        about = path.lstat()
    except OSError:
        return False  # removed meanwhile
    is_ours = _NAME.fullmatch(path.name) is not None and stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
    return is_ours and time.time() - about.st_mtime > _SURELY_STARTED_SECONDS


def _commands(proc: Path) -> Iterator[bytes]:
    for path in proc.glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes()
        except OSError:
            continue  # ended meanwhile


def _is_served(directory: Path) -> bool:
    """Returns whether a process listens on a socket of a cluster. Ray ignores connections that end at once."""
    for path in directory.glob("ray/session_[0-9]*/sockets/*"):
        with socket.socket(socket.AF_UNIX) as end:
            end.setblocking(False)
            try:
                end.connect(str(path))
            except BlockingIOError:
                return True  # others wait in its queue
            except OSError:
                continue  # no process listens
            return True
    return False
