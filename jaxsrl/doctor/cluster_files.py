"""Directories of local Ray clusters (`jaxsrl.cluster.ray.local_cluster`) whose run is dead: a run that ends removes its own."""

import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_NAME = re.compile(r"jaxsrl-ray-[a-z0-9_]{8}")  # as tempfile.mkdtemp makes it
_SURELY_STARTED_SECONDS = 60.0


def cluster_parents() -> list[Path]:
    """Where runs of this user put them: with other temporary files, or in /tmp where that is too far down."""
    return sorted({Path(tempfile.gettempdir()), Path("/tmp")})


def find_dead_clusters(places: Sequence[Path], proc: Path) -> Iterator[Path]:
    """Directories of this user's that no living process names on its command line, as every process of a cluster does.

    One that has just been made is not among them: its first process may be about to start.

    Args:
        places: where they are.
        proc: where processes are.
    """
    found = [path for place in places for path in sorted(place.glob("jaxsrl-ray-*")) if _is_old_and_ours(path)]
    commands = list(_commands(proc)) if found else []
    for path in found:
        if not any(os.fsencode(path.name) in command for command in commands):
            yield path


def _is_old_and_ours(path: Path) -> bool:
    try:
        about = path.lstat()
    except OSError:
        return False  # removed since it was listed
    is_ours = _NAME.fullmatch(path.name) is not None and stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
    return is_ours and time.time() - about.st_mtime > _SURELY_STARTED_SECONDS


def _commands(proc: Path) -> Iterator[bytes]:
    for path in proc.glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes()
        except OSError:
            continue  # ended since it was listed
