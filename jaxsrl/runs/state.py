"""What a run is doing, from the files it left. Never takes the run's lock: a run that begins at that moment would be refused."""

import os
import re
import socket
from pathlib import Path

from jaxsrl.run_directory import LOCK

RUNNING, FINISHED, STOPPED, CRASHED, EMPTY = "running", "finished", "stopped", "crashed", "empty"
_HOLDER = re.compile(r"process (\d+) on (.+), started ")


def run_state(directory: Path, log: list[str], num_updates: float, total_updates: float | None) -> str:
    """One of running, finished, stopped (by a signal), crashed and empty.

    Args:
        directory: of the run.
        log: its log's lines, or the last of them.
        num_updates: done, as far as is recorded.
        total_updates: wanted; None if that is not known.
    """
    if is_locked(directory / LOCK):
        return RUNNING
    last = next((line for line in reversed(log) if " at update " in line or "already complete" in line), "")
    if "complete at update" in last or "already complete" in last:
        return FINISHED
    if "stopped by" in last:
        return STOPPED
    if total_updates and num_updates >= total_updates:
        return FINISHED
    return CRASHED if num_updates or log else EMPTY


def is_locked(lock: Path, kernel_locks: Path = Path("/proc/locks")) -> bool:
    """Whether a process holds the lock of a run directory.

    The kernel tells where it has a list of locks; elsewhere the process that the file names must be alive on this machine.
    """
    try:
        found = lock.stat()
    except OSError:
        return False
    try:
        held = kernel_locks.read_text().splitlines()
    except OSError:
        return _holder_lives(lock)
    # Some file systems tell another device number here than there: then the process that the file names must be the holder.
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    holder = _holder(lock)
    for line in held:
        fields = line.split()  # 1: FLOCK ADVISORY WRITE <process> <device>:<inode> <range>; those that wait have "->"
        if len(fields) < 6 or fields[1] != "FLOCK" or fields[5].rpartition(":")[2] != str(found.st_ino):
            continue
        if fields[5].rpartition(":")[0] == device or fields[4] == str(holder[0]):
            return True
    return False


def _holder(lock: Path) -> tuple[int, str]:
    """Process and machine that the file names; (0, "") if it names none."""
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
        return True  # of somebody else
    except (OSError, OverflowError):
        return False
    return True
