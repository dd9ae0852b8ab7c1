"""Programs that train, in one process or in two learner processes that share a mesh."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
END_SECONDS = 240  # of a run, whose programs may have to be compiled beside other tests


def start(program: str, *flags: str, root: Path = ROOT) -> subprocess.Popen[str]:
    """Starts a program of the repository, or of a copy; it has one CPU device unless the flags say otherwise."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(root)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, program, *flags], cwd=root, env=environment, **pipes)


def start_two(programs: str | tuple[str, str], *flags: str, own: Mapping[int, tuple[str, ...]] | None = None):
    """Starts two learner processes of one device each; `own` are further flags by process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    names = (programs,) * 2 if isinstance(programs, str) else programs
    return [
        start(
            program,
            *flags,
            *("--machine.num-cpu-devices", "1", "--distributed.coordinator", f"127.0.0.1:{port}"),
            *("--distributed.num-processes", "2", "--distributed.process-id", str(process)),
            *("--distributed.lost-seconds", "10", "--distributed.wait-seconds", "120"),
            *(own or {}).get(process, ()),
        )
        for process, program in enumerate(names)
    ]


def ends(started: list[subprocess.Popen[str]], seconds: float = END_SECONDS) -> list[tuple[int, str, str]]:
    """(status, stdout, stderr) of each; none is left running."""
    found: list[tuple[int, str, str]] = []
    try:
        deadline = time.monotonic() + seconds
        for process in started:
            out, err = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
            found.append((process.returncode, out, err))
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return found
