"""SIGKILL and SIGSTOP at random moments: nothing is lost, doubled or torn, and nothing is left. Seeds are in the tests' names."""

import logging
import os
import random
import signal
import threading
import time

import numpy as np
import pytest

from envpool_bridge.options import SupervisorOptions
from envpool_bridge.shm.layout import PoolShape
from tests.chaos.counting import SHAPE, begin, check, collect, joined, kill, make_pool, pids, still_running
from tests.support.journal import journal_in
from tests.support.journal_audit import audit

SHARED = PoolShape(
    num_workers=2, lanes_per_worker=2, workers_per_lane=2, rows_per_part=3, rollout_length=8, num_slots=3
)
PATIENT = SupervisorOptions(max_restarts=1_000_000, max_backoff_seconds=0.0, step_timeout_seconds=0.5)


class Killer:
    """Sends signals to a pool's workers from a thread, at random moments."""

    def __init__(self, pool, seed, mean_seconds, numbers=(signal.SIGKILL,)):
        self.pool, self.random, self.mean, self.numbers = pool, random.Random(seed), mean_seconds, numbers
        self.kills, self.done = 0, threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.done.wait(self.random.expovariate(1.0 / self.mean)):
            worker = self.random.randrange(self.pool.shape.num_workers)
            try:
                self.kills += kill(self.pool, worker, self.random.choice(self.numbers))
            except (OSError, AttributeError):
                pass  # it was buried at this very moment

    def __enter__(self):
        logging.getLogger("envpool_bridge").setLevel(logging.ERROR)
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.done.set()
        self.thread.join()
        logging.getLogger("envpool_bridge").setLevel(logging.NOTSET)


def collect_until(pool, killer, kills, seconds):
    """Slots until so many signals were sent."""
    slots, deadline = [], time.monotonic() + seconds
    while killer.kills < kills:
        assert time.monotonic() < deadline, f"{killer.kills} kills only"
        slots += collect(pool, 1, seconds=30.0)
    return slots


def run_under_fire(shape, seed, kills, mean_seconds, directory, numbers=(signal.SIGKILL,), seconds=120.0):
    descriptors = set(os.listdir("/proc/self/fd"))
    with make_pool(shape, supervision=PATIENT, journal=journal_in(directory / "journals")) as pool:
        begin(pool)
        collect(pool, 1)
        own = len(os.listdir("/proc/self/fd"))
        with Killer(pool, seed, mean_seconds, numbers) as killer:
            slots = collect_until(pool, killer, kills, seconds)
        slots += collect(pool, 4)  # the last one is replaced
        assert len(os.listdir("/proc/self/fd")) <= own  # garbage of an earlier test may close some meanwhile
        workers, totals = pids(pool), pool.supervision
    assert still_running(workers) == []
    assert set(os.listdir("/proc/self/fd")) <= descriptors
    valid, cuts = check(slots)
    found = audit(directory / "journals")
    assert found.is_clean, found
    assert found.in_flight <= found.deaths * len(pool.shape.parts_of_worker(0))
    return slots, totals, (valid, cuts)


@pytest.mark.parametrize("seed", [0])
def test_kills_at_random_moments_lose_nothing(seed, tmp_path):
    _, totals, (valid, cuts) = run_under_fire(SHARED, seed, 8, 0.2, tmp_path)
    assert totals.restarts >= 4
    assert valid > 100
    assert cuts > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1])
def test_five_hundred_kills_lose_nothing_and_recovery_is_quick(seed, tmp_path):
    slots, totals, _ = run_under_fire(SHARED, seed, 500, 0.3, tmp_path, seconds=600.0)
    assert totals.restarts > 400
    # Of each part: from its last step before a death to its first one after it.
    incarnation = np.stack([slot["incarnation"] for slot in slots])
    stepped_at = joined(slots)["stepped_at"]
    gaps = [
        np.diff(stepped_at[t : t + 17, part]).max()
        for part in range(4)
        for t in np.flatnonzero(np.diff(incarnation[:, part])) * 8
    ]
    print(f"gap at a death: p50 {np.median(gaps):.3f} s, p99 {np.quantile(gaps, 0.99):.3f} s, {len(gaps)} of them")
    assert np.median(gaps) < 0.5


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [2])
def test_stops_and_kills_together_lose_nothing(seed, tmp_path):
    numbers = (signal.SIGKILL, signal.SIGSTOP)
    _, totals, _ = run_under_fire(SHAPE, seed, 60, 0.5, tmp_path, numbers, 200.0)
    assert totals.hangs > 0  # a kill may come first: how many hang depends on the load
