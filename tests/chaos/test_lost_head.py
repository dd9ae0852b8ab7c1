"""A local Ray cluster whose head or raylets are killed while a run trains."""

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
    *("--run.total-env-steps", "1000000000", "--run.name", "run"),
)


def kill_all(session, name):
    """Kills the processes of this name."""
    found = [pid for pid in members(session) if Path(f"/proc/{pid}/comm").read_text().strip() == name]
    assert found
    for pid in found:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("killed", "interval", "words"),
    [
        ("gcs_server", "0", "the head of the Ray cluster is lost: it did not answer for 30 s."),
        (
            "raylet",
            "5",
            "Ray ended this process (its own lines above say what it saw)",
        ),  # from C++: nothing can be saved then
    ],
)
def test_a_run_that_loses_ray_is_saved_and_says_why(tmp_path, killed, interval, words):
    pytest.importorskip("ray")
    command = [sys.executable, "-m", "jaxsrl.cli.main", "train", "ppo_cartpole", "--run.directory", str(tmp_path)]
    process = subprocess.Popen(
        [*command, *FLAGS, "--checkpoint.interval-updates", interval],
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
        while not (metrics.exists() and len(metrics.read_text().splitlines()) > 2):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        commands = [(Path("/proc") / str(pid) / "cmdline").read_bytes().decode() for pid in members(process.pid)]
        kill_all(process.pid, killed)
        _, said = process.communicate(timeout=240)
        seconds_until_gone(process.pid, 30.0)
    finally:
        end_session(process)
    assert process.returncode == 75, said
    assert f"error: {words}" in said
    assert words in (tmp_path / "run" / "log.txt").read_text()
    assert list((tmp_path / "run" / "checkpoints").iterdir())
    again = [
        *command,
        *FLAGS,
        "--run.total-env-steps",
        "1024",
        "--eval.final-episodes",
        "1",
    ]  # which the checkpoint has
    done = subprocess.run(again, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert (done.returncode, "resumes" in done.stdout) == (0, True), done.stdout + done.stderr
    places = {word for command in commands for word in command.split("\0") if Path(word).name.startswith("jaxsrl-ray-")}
    assert places
    assert not any(Path(place).exists() for place in places)
