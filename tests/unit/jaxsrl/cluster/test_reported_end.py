"""Ends of a process that no Python code sees: status, line and log."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, os, signal, sys
from pathlib import Path
from jaxsrl.cluster.reported_end import reported_end

def end(kind, log):
    with reported_end(log):
        if kind == "stopped":
            signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
            os.kill(os.getppid(), signal.SIGTERM)
            signal.pause()
        if kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "left":
            os._exit(1)
        if kind == "rejected":
            sys.exit(2)
        raise ValueError("an error")

statuses = {}
for kind in ("left", "killed", "stopped", "rejected", "failed"):
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        end(kind, Path(sys.argv[1], kind, "log.txt"))
    statuses[kind] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(statuses))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends children with their parent on Linux only")
def test_ends_from_outside_are_logged(tmp_path):
    for kind in ("left", "killed", "rejected", "failed"):
        (tmp_path / kind).mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout) == {"left": 75, "killed": -9, "stopped": 143, "rejected": 2, "failed": 1}
    logged = {path.parent.name: path.read_text() for path in tmp_path.glob("*/log.txt")}
    assert set(logged) == {"left", "killed"}
    assert "ends: Ray ended this process" in logged["left"]
    assert "was ended by SIGKILL" in logged["killed"]
