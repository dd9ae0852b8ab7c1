"""However a run ends, no process and no shared-memory name outlives it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRAIN = [
    sys.executable,
    str(ROOT / "experiments" / "ppo_cartpole.py"),
    *("--run.name", "killed", "--run.env-steps", "100000000", "--run.log-every-seconds", "0.2"),
]
HANGS = """
import ctypes, sys, time
from envpool_bridge.adapters.gymnasium_rows import GymnasiumSource
from envpool_bridge.adapters.rows import GymnasiumReset
from envpool_bridge.layout import PoolShape
from envpool_bridge.pool import EnvPool
from tests_hanging import Hangs
pool = EnvPool(GymnasiumSource(Hangs), PoolShape(2, 1, 1, 1, 4, 2))
pool.start([GymnasiumReset((0,))] * 2)
print("ready", flush=True)
time.sleep(60)
"""
HANGING_ENV = """
import ctypes
from envpool_bridge.adapters.probe import ConstantReward
class Hangs(ConstantReward):
    def reset(self, *, seed=None, options=None):
        ctypes.PyDLL(None).sleep(600)  # in C, with the interpreter's lock held
"""


def descendants(pid: int) -> set[int]:
    """All processes below `pid`."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def alive(pids: set[int]) -> set[int]:
    running = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            running.add(pid)
    return running


def assert_all_gone(pids: set[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while alive(pids):
        assert time.monotonic() < deadline, f"still running: {alive(pids)}"
        time.sleep(0.02)


def start_training(directory: Path) -> tuple[subprocess.Popen, set[int]]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [*TRAIN, "--run.directory", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    for line in process.stdout:
        if "env steps/s" in line:
            break
    pids = descendants(process.pid)
    assert len(pids) == 3  # the fork server and two workers
    return process, pids


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_with_a_checkpoint_and_nothing_else(tmp_path, number):
    process, pids = start_training(tmp_path)
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert f"stopped by {number.name}" in output
    assert list((tmp_path / "killed" / "checkpoints").iterdir())
    assert_all_gone(pids, 1.0)


def test_a_kill_of_the_main_process_takes_the_workers_with_it(tmp_path):
    process, pids = start_training(tmp_path)
    process.kill()
    process.communicate()
    assert_all_gone(pids, 1.0)


def test_a_second_interrupt_leaves_at_once(tmp_path):
    process, pids = start_training(tmp_path)
    os.kill(process.pid, signal.SIGSTOP)  # both signals arrive before it can finish the update
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    os.kill(process.pid, signal.SIGCONT)
    start = time.monotonic()
    process.communicate(timeout=10)
    assert time.monotonic() - start < 2.0
    assert process.returncode in {130, 143}
    assert_all_gone(pids, 1.0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_that_hang_in_native_code_die_with_the_main_process(tmp_path, number):
    (tmp_path / "tests_hanging.py").write_text(HANGING_ENV)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    process = subprocess.Popen(
        [sys.executable, "-c", HANGS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    process.stdout.readline()
    pids = descendants(process.pid)
    process.send_signal(number)
    process.communicate(timeout=20)
    assert len(pids) == 3
    assert_all_gone(pids, 1.0)
