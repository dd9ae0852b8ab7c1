"""State of a run, from its files. It never takes the run's lock, because a run that starts at that moment would fail."""

import os
import re
import socket
from pathlib import Path

from jaxsrl.checkpoints.run_directory import LOCK

RUNNING, FINISHED, STOPPED, CRASHED, EMPTY = "running", "finished", "stopped", "crashed", "empty"
_HOLDER = re.compile(r"process (\d+) on (.+), started ")


def run_state(
    directory: Path, log: list[str], num_updates: float, total_updates: float | None, wrote_recently: bool = False
) -> str:
    """Returns running, finished, stopped (by a signal, a rule or a request), crashed or empty.

    Args:
        directory: directory of the run.
        log: lines of its log, or the last of them.
        num_updates: recorded updates.
        total_updates: updates of the whole run; None if unknown.
        wrote_recently: whether it has just written a record or its log: the sign of a run of another machine.
    """
    if is_locked(directory / LOCK):
        return RUNNING
    last = next((line for line in reversed(log) if " at update " in line or "already complete" in line), "")
    if "complete at update" in last or "already complete" in last:
        return FINISHED
    if "stopped by" in last or "stopped: " in last:
        return STOPPED
    if wrote_recently and _holder(directory / LOCK)[1] not in ("", socket.gethostname()):
        return RUNNING  # locks of another machine are not visible here
    if total_updates and num_updates >= total_updates:
        return FINISHED
    return CRASHED if num_updates or log else EMPTY


def is_locked(lock: Path, kernel_locks: Path = Path("/proc/locks")) -> bool:
    """Returns whether a process holds the lock of a run directory.

    Where the kernel lists locks, the list decides. Elsewhere the process that the file names must be alive on this machine.
    """
    try:
        status = lock.stat()
    except OSError:
        return False
    try:
        held = kernel_locks.read_text().splitlines()
    except OSError:
        return _holder_lives(lock)
    # Some file systems report another device number in the list: then the process that the file names must be the holder.
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    holder = _holder(lock)
    for line in held:
        fields = line.split()  # 1: FLOCK ADVISORY WRITE <process> <device>:<inode> <range>; waiting ones have "->"
        if len(fields) < 6 or fields[1] != "FLOCK" or fields[5].rpartition(":")[2] != str(status.st_ino):
            continue
        if fields[5].rpartition(":")[0] == device or fields[4] == str(holder[0]):
            return True
    return False


def _holder(lock: Path) -> tuple[int, str]:
    """Returns process and machine that the file names; (0, "") if it names none."""
    try:
        match = _HOLDER.match(lock.read_text(errors="replace"))
    except OSError:
        return 0, ""
    return (int(match[1]), match[2]) if match else (0, "")


def _holder_lives(lock: Path) -> bool:
    process, machine = _holder(lock)
    if not process or machine != socket.gethostname():
        return False
    try:
        os.kill(process, 0)
    except PermissionError:
        return True  # of another user
    except (OSError, OverflowError):
        return False
    return True
