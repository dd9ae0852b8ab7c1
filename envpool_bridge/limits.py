"""Cores and memory that this process may use: those of the machine, and what the control groups around the process allow."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


class _GroupFiles(NamedTuple):
    """File names in one version of control groups."""

    controller: str
    limit: str
    used: str
    reclaimable: str


_GROUP_FILES = (
    _GroupFiles("", "memory.max", "memory.current", "inactive_file"),
    _GroupFiles("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def count_cores() -> int:
    """Returns the number of cores that this process may keep busy, at least 1: a CPU quota counts in whole cores."""
    return max(1, int(min([count_visible_cores(), *_quotas()])))


def count_visible_cores() -> int:
    """Returns the number of cores that this process may run on; all of them where the system has no affinity (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_host_bytes() -> int | None:
    """Returns the bytes of memory that this process may still use, including shared memory; None if unknown.

    It is the minimum of the kernel's available memory and the rest of each control group above this process.
    """
    try:
        lines = (_PROC / "meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    left = [_left_in_group(directory, files) for files in _GROUP_FILES for directory in _groups(files.controller)]
    return max(0, min([available, *(number for number in left if number is not None)]))


def _quotas() -> Iterator[float]:
    """Yields the limits of CPU time that control groups set, in cores."""
    texts = [(group / "cpu.max", None) for group in _groups("")]
    texts += [(group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us") for group in _groups("cpu")]
    for quota, period in texts:
        try:
            numbers = (quota.read_text() if period is None else f"{quota.read_text()} {period.read_text()}").split()
            cores = int(numbers[0]) / int(numbers[1])
        except (OSError, ValueError, ArithmeticError):  # no such group, or no limit: "max"
            continue
        if cores > 0.0:  # no limit: -1
            yield cores


def _groups(controller: str) -> list[Path]:
    """Returns directories of this process's control group and its ancestors; a container shows only its own, as the root."""
    try:
        lines = (_PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        lines = []
    entries = [line.split(":", 2)[1:] for line in lines if line.count(":") >= 2]
    paths = [path.strip("/") for controllers, path in entries if controller in controllers.split(",")]
    root = _CGROUP / controller
    inner = [root / path for path in paths if path and ".." not in path]
    return [root, *(group for one in inner for group in (one, *one.parents) if root in group.parents)]


def _left_in_group(directory: Path, files: _GroupFiles) -> int | None:
    """Returns bytes below the group's limit. Inactive file pages count as free, because the kernel drops them."""
    try:
        limit, used = int((directory / files.limit).read_text()), int((directory / files.used).read_text())
    except (OSError, ValueError):  # no such group, or no limit: "max"
        return None
    try:
        counts = dict(line.split(" ", 1) for line in (directory / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        counts = {}
    return limit - used + int(counts.get(files.reclaimable, 0))
