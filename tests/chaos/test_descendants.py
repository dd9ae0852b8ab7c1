"""Programs of environments end with their worker, however it ends, also as orphans and in sessions of their own."""

import contextlib
import os
import random
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from envpool_bridge.errors import WorkerError
from tests.chaos.counting import Counting, begin, collect, make_pool
from tests.chaos.test_leaks import SHAPE, wait_for_recovery

NUM_PROGRAMS = 3 * SHAPE.num_workers * SHAPE.rows_per_part
"""Of a pool of `Starts`."""


class Starts(Counting):
    """Starts a child, a child in a session of its own, and an orphan in another, which `programs` finds by the main process."""

    def __init__(self, main):
        super().__init__()
        sleep = ["sleep", "1000", f"0.{main}"]
        if os.getpid() != main:
            subprocess.Popen(sleep)
            subprocess.Popen(sleep, start_new_session=True)
            subprocess.run(["sh", "-c", f"{' '.join(sleep)} &"], start_new_session=True, check=True)


def programs(main):
    """Returns the living programs of the environments of a main process, and their parents."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if f"\x000.{main}\0".encode() in (entry / "cmdline").read_bytes():
                found[int(entry.name)] = parent_of(entry.name)
    return found


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_until_gone(pids, main):
    deadline = time.monotonic() + 60.0
    while left := pids & programs(main).keys():
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.002)


def kill_workers(kills, generator):
    """Kills a worker or its keeper so many times, and closes the pool; fails unless their programs, and no others, end."""
    main = os.getpid()
    with make_pool(SHAPE, partial(Starts, main)) as pool:
        begin(pool)
        collect(pool, 1)
        assert len(programs(main)) == NUM_PROGRAMS
        for _ in range(kills):
            worker = generator.randrange(SHAPE.num_workers)
            family = {pid := pool._workers._pids[worker], parent_of(pid)}
            own = {program for program, parent in programs(main).items() if parent in family}
            others = programs(main).keys() - own
            assert len(own) >= 3 * SHAPE.rows_per_part
            recovered = pool.supervision.recoveries
            os.kill(generator.choice(sorted(family)), signal.SIGKILL)
            wait_until_gone(own, main)
            assert others <= programs(main).keys()
            wait_for_recovery(pool, recovered)
    assert programs(main) == {}


def test_programs_end_with_their_worker_and_with_the_pool():
    kill_workers(2, random.Random(0))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_killed_workers_leave_no_program():
    kill_workers(100, random.Random(1))


class StartsAndFails(Starts):
    def act_up(self):
        raise ValueError("out of ideas")


def test_programs_end_with_a_worker_that_fails():
    main = os.getpid()
    with make_pool(SHAPE, partial(StartsAndFails, main)) as pool:
        begin(pool)
        with pytest.raises(WorkerError):
            collect(pool, 1)
    assert programs(main) == {}
