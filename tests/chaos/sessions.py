"""Processes of a session, which identifies all processes of a program even after their parents have died."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def members(session):
    """Returns the living processes of a session: their ids and parents."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if entry.name.isdigit():
                state, parent, _, its_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(its_session) == session and state not in "ZX":
                    found[int(entry.name)] = int(parent)
    return found


def begin_session(code, *arguments, **options):
    """Starts a Python program in a session of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **options.pop("environment", {})}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, start_new_session=True, **options)


def seconds_until_gone(session, limit_seconds):
    """Returns the seconds until no process of a session is left; fails after the limit."""
    began = time.monotonic()
    while left := members(session):
        waited = time.monotonic() - began
        assert waited < limit_seconds, f"still there after {waited:.1f} s: {left}"
        time.sleep(0.002)
    return time.monotonic() - began


def signal_all(session, number):
    """Sends a signal to every process of a session, as systemd and Slurm do."""
    for pid in members(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def end_session(process):
    """Kills the remaining processes of a session."""
    for pid in members(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()
