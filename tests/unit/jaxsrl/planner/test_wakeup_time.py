"""The process that is woken to measure a ring."""

import os
import select
import subprocess
import sys
import time

from jaxsrl.planner.wakeup_time import _sleeper, measure_doorbell_seconds


def children() -> set[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return {int(child) for child in file.read().split()}


def test_a_ring_takes_some_time() -> None:
    assert 1e-7 < measure_doorbell_seconds() < 1.0  # on a machine that is busy otherwise, too


def test_sleeper_wakes_on_every_ring_and_exits() -> None:
    before = children()
    with _sleeper() as bell:
        assert len(children() - before) == 1
        for _ in range(3):
            bell.ring()
            deadline = time.monotonic() + 60.0
            while select.select([bell.descriptor], [], [], 0.0)[0]:  # readable until the sleeper has heard it
                assert time.monotonic() < deadline
    assert children() == before


def test_the_sleeper_does_not_outlive_a_process_that_is_killed() -> None:
    script = """
import os, signal
from jaxsrl.planner.wakeup_time import _sleeper
with _sleeper():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        print(file.read(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=150, check=False)
    (sleeper,) = map(int, done.stdout.split())
    deadline = time.monotonic() + 60.0
    while os.path.exists(f"/proc/{sleeper}") and _state(sleeper) != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _state(process: int) -> str:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"
