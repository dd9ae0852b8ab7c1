"""A local Ray cluster whose head is killed while a run trains."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.sessions import ROOT, end_session, members, seconds_until_gone

FLAGS = (
    *("--cluster.address", "local", "--cluster.num-hosts", "1", "--pool.num-workers", "1", "--run.num-envs", "8"),
    *("--run.total-env-steps", "1000000000", "--checkpoint.interval-updates", "0", "--run.name", "run"),
)


def head_of(session):
    """Returns the id of the head's process."""
    (pid,) = (pid for pid in members(session) if Path(f"/proc/{pid}/comm").read_text().strip() == "gcs_server")
    return pid


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_loses_the_head_saves_and_ends(tmp_path):
    pytest.importorskip("ray")
    process = subprocess.Popen(
        [*(sys.executable, "-m", "jaxsrl.cli.main", "train", "ppo_cartpole", "--run.directory", str(tmp_path)), *FLAGS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        metrics = tmp_path / "run" / "metrics.jsonl"
        deadline = time.monotonic() + 240.0
        while not (metrics.exists() and metrics.stat().st_size):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        commands = [(Path("/proc") / str(pid) / "cmdline").read_bytes().decode() for pid in members(process.pid)]
        os.kill(head_of(process.pid), signal.SIGKILL)
        _, said = process.communicate(timeout=240)
        seconds_until_gone(process.pid, 30.0)
    finally:
        end_session(process)
    assert process.returncode == 75, said
    assert "error: the head of the Ray cluster is lost: it did not answer for 30 s." in said
    assert list((tmp_path / "run" / "checkpoints").iterdir())
    places = {word for command in commands for word in command.split("\0") if Path(word).name.startswith("jaxsrl-ray-")}
    assert places
    assert not any(Path(place).exists() for place in places)
