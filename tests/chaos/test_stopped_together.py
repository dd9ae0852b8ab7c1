"""A run that is stopped with all its processes (Ctrl-Z) and goes on later: no worker is taken for one that hangs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.counting import Counting
from tests.chaos.sessions import signal_all

ROOT = Path(__file__).parents[2]
STEP_FOR_EVER = """
import sys, time
from envpool_bridge.options import SupervisorOptions
from tests.chaos.counting import SHAPE, act, begin, make_pool
from tests.chaos.test_stopped_together import Slow

with make_pool(SHAPE, Slow, SupervisorOptions(step_timeout_seconds=1.5)) as pool:
    begin(pool)
    assert pool.wait_started(20.0)
    print("ready", flush=True)
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        act(pool)
        if pool.acquire(0.0) is not None:
            pool.release(pool._next_lease - 1)
    print(f"hangs: {pool.supervision.hangs}", flush=True)
"""


class Slow(Counting):
    """Its steps take a third of a second, so that those of a worker's three rows together are hardly ever done at once."""

    def act_up(self):
        time.sleep(0.33)


@pytest.mark.slow
def test_worker_stopped_with_its_supervisor_is_not_hung():
    with subprocess.Popen(
        [sys.executable, "-c", STEP_FOR_EVER],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        signal_all(process.pid, signal.SIGSTOP)
        time.sleep(3.0)
        signal_all(process.pid, signal.SIGCONT)
        printed, _ = process.communicate(timeout=30)
    assert printed == "hangs: 0\n"
