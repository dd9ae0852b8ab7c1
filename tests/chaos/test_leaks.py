"""Pools that start and stop, and workers that are replaced, again and again: nothing piles up."""

import dataclasses
import logging
import os
import time
from pathlib import Path

import pytest

from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.supervisor.exit_status import resident_bytes
from tests.chaos.counting import act, begin, collect, kill, make_pool
from tests.chaos.sessions import members
from tests.shared_names import names_left

SHAPE = PoolShape(num_workers=2, lanes_per_worker=1, workers_per_lane=1, rows_per_part=2, rollout_length=4, num_slots=2)
MOST_GROWTH_BYTES = 5 * 2**20


@dataclasses.dataclass(frozen=True)
class Held:
    """What a process holds."""

    descriptors: int
    zombies: int
    memory_bytes: int


def held(pid):
    """By a process, and its children that have ended and not been reaped."""
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    return Held(descriptors, len(zombies_of(pid)), resident_bytes(pid) or 0)


def zombies_of(parent):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, its_parent = path.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state == "Z" and int(its_parent) == parent:
            found.append(path.parent.name)
    return found


def assert_flat(before, pid, what):
    """Asserts that a process holds no more than before, once it is done with what it was asked; returns its growth in bytes."""
    deadline = time.monotonic() + 30.0
    while (after := held(pid)).descriptors > before.descriptors or after.zombies > before.zombies:
        if time.monotonic() >= deadline:
            break
        time.sleep(0.05)
    assert after.descriptors <= before.descriptors, what
    assert after.zombies <= before.zombies, what
    grown = after.memory_bytes - before.memory_bytes
    assert grown <= MOST_GROWTH_BYTES, f"{what} has grown by {grown / 2**20:.1f} MiB"
    return grown


def start_and_stop(times, warm_up):
    """Starts and stops a pool that fills a slot, so many times; the growth since the first few, in bytes."""
    names, before = names_left(), None
    for number in range(times):
        if number == warm_up:
            before = held(os.getpid())
        with make_pool(SHAPE) as pool:
            begin(pool)
            collect(pool, 1)
    assert names_left() <= names
    return assert_flat(before, os.getpid(), "the main process")


def respawn(times, warm_up):
    """Kills a worker so many times, each when the last one has been replaced; growths since the first few, in bytes."""
    logging.getLogger("envpool_bridge").setLevel(logging.ERROR)
    try:
        with make_pool(SHAPE) as pool:
            begin(pool)
            collect(pool, 1)
            processes = {"the main process": os.getpid(), "the fork server": pool._workers._server._process.pid}
            before = {}
            for number in range(times):
                if number == warm_up:
                    wait_for_workers(pool, SHAPE.num_workers + 1)  # the spare, for which the server has a descriptor
                    before = {what: held(pid) for what, pid in processes.items()}
                kill_and_wait(pool, number % SHAPE.num_workers)
            collect(pool, 2)
            wait_for_workers(pool, SHAPE.num_workers + 1)
            return {what: assert_flat(before[what], pid, what) for what, pid in processes.items()}
    finally:
        logging.getLogger("envpool_bridge").setLevel(logging.NOTSET)


def kill_and_wait(pool, worker):
    """Kills a worker and goes on acting until its successor has stepped."""
    recovered = pool.supervision.recoveries
    assert kill(pool, worker)
    wait_for_recovery(pool, recovered)


def wait_for_recovery(pool, recovered):
    """Acts until more workers have been replaced than before."""
    deadline = time.monotonic() + 30.0
    while pool.supervision.recoveries == recovered:
        assert time.monotonic() < deadline
        act(pool, 0.02)
        if pool.acquire(0.0) is not None:
            pool.release(pool._next_lease - 1)


def workers_of(pool):
    """Returns the workers and the spare: the only children of the children of the fork server."""
    living = members(os.getsid(0))
    return {pid for pid, parent in living.items() if living.get(parent) == pool._workers._server._process.pid}


def wait_for_workers(pool, number):
    deadline = time.monotonic() + 30.0
    while len(found := workers_of(pool)) != number:
        assert time.monotonic() < deadline, f"expected {number} workers and spares, got {found}"
        act(pool, 0.02)
    return found


def kill_until(pool, is_so):
    """Kills a worker again and again: a spare that is not ready yet is passed over."""
    deadline = time.monotonic() + 60.0
    while not is_so():
        assert time.monotonic() < deadline
        kill_and_wait(pool, 1)


@pytest.mark.slow
def test_eight_pools_started_and_stopped_leave_nothing():
    start_and_stop(8, 3)


def test_twenty_workers_replaced_leave_nothing():
    respawn(20, 6)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_thousand_pools_started_and_stopped_leave_nothing():
    print(f"grown by {start_and_stop(1000, 50) / 2**20:.2f} MiB")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_thousand_workers_replaced_leave_nothing():
    print({what: f"grown by {grown / 2**20:.2f} MiB" for what, grown in respawn(2000, 100).items()})
