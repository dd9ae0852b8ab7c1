"""Memory of a process and everything it started, from /proc."""

import os
from pathlib import Path

_PROC = Path("/proc")


def memory_of_tree(pid: int) -> int:
    """Returns the resident bytes of a process and its descendants, with shared pages counted once (Pss)."""
    parents = _parents()
    tree, added = {pid}, {pid}
    while added:
        added = {child for child, parent in parents.items() if parent in tree and child not in tree}
        tree |= added
    return sum(_resident_bytes(process) for process in tree)


def _parents() -> dict[int, int]:
    parents: dict[int, int] = {}
    for name in os.listdir(_PROC):
        if not name.isdecimal():
            continue
        try:
            stat = (_PROC / name / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended since it was listed
        # The second field is the command in brackets, which may itself hold blanks and brackets.
        parents[int(name)] = int(stat.rpartition(")")[2].split()[1])
    return parents


def _resident_bytes(pid: int) -> int:
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
