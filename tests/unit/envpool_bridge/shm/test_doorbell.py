"""Waiting for other processes: no ring is lost, every wait ends, and who waits does not stand in the way of who computes."""

import os
import threading
import time

import pytest

from envpool_bridge.shm import doorbell
from envpool_bridge.shm.doorbell import Doorbell, Waiter


@pytest.fixture
def bell():
    made = Doorbell()
    yield made
    made.close()


@pytest.fixture
def yields(monkeypatch):
    """Makes each yield take so many seconds; returns a list that has an entry for each."""

    def take(seconds):
        taken = []
        monkeypatch.setattr(doorbell.os, "sched_yield", lambda: taken.append(time.sleep(seconds)))
        return taken

    return take


def test_a_wait_ends_at_its_deadline(bell):
    start = time.monotonic()
    assert Waiter(bell).wait(lambda: False, 0.05) is False
    assert time.monotonic() - start >= 0.05


def test_no_ring_is_lost_between_looking_and_sleeping(bell):
    there, seen = Doorbell(), [0, 0]

    def answer():
        waiter = Waiter(bell)
        for turn in range(1, 2001):
            assert waiter.wait(lambda turn=turn: seen[0] >= turn, 60.0)
            seen[1] = turn
            there.ring()

    thread = threading.Thread(target=answer)
    thread.start()
    waiter = Waiter(there)
    for turn in range(1, 2001):
        seen[0] = turn
        bell.ring()
        assert waiter.wait(lambda turn=turn: seen[1] >= turn, 60.0)
    thread.join()
    there.close()


def test_a_watched_descriptor_wakes_the_waiter(bell):
    read, write = os.pipe()
    woken = []
    os.write(write, b"x")
    waiter = Waiter(bell, (read,))
    assert waiter.wait(lambda: bool(woken), 5.0, lambda: woken.append(os.read(read, 1)))
    assert woken == [b"x"]
    for descriptor in (read, write):
        os.close(descriptor)


def test_waiter_yields_an_uncontended_core(bell, yields, monkeypatch):
    monkeypatch.setattr(doorbell, "_TAKEN_SECONDS", 60.0)  # whatever else runs beside this test
    taken = yields(0.0)
    asked = []
    assert Waiter(bell, spin_seconds=5.0).wait(lambda: asked.append(1) or len(asked) > 3, 5.0)
    assert len(taken) == 3  # after the first look, before each of the others


@pytest.mark.parametrize("in_time", [False, True])
def test_waiter_sleeps_after_losing_its_core(bell, yields, monkeypatch, in_time):
    monkeypatch.setattr(doorbell, "_REST_SECONDS", 60.0)
    taken = yields(0.002)
    waiter = Waiter(bell, spin_seconds=5.0)
    assert waiter.wait(lambda: in_time and bool(taken), 0.01) is in_time  # noticed though what was waited for is there
    assert not waiter.wait(lambda: False, 0.01)
    assert len(taken) == 1


def test_a_waiter_tries_again_to_yield_after_a_while(bell, yields, monkeypatch):
    monkeypatch.setattr(doorbell, "_REST_SECONDS", 1.0)
    taken = yields(0.002)
    waiter = Waiter(bell, spin_seconds=60.0)
    assert not waiter.wait(lambda: False, 0.01)
    time.sleep(1.1)
    assert not waiter.wait(lambda: False, 0.01)
    assert len(taken) == 2


def test_a_waiter_that_spins_ends_at_its_deadline(bell, yields, monkeypatch):
    monkeypatch.setattr(doorbell, "_TAKEN_SECONDS", 60.0)
    yields(0.0)
    looks = []
    assert not Waiter(bell, spin_seconds=1e6).wait(lambda: looks.append(1), 0.01)
    assert len(looks) > 1


@pytest.mark.parametrize("seconds", [float("inf"), 1e9])
def test_a_wait_may_be_longer_than_one_poll(bell, seconds):
    looks = []
    bell.ring()
    assert Waiter(bell).wait(lambda: looks.append(1) or len(looks) > 1, seconds)


def test_a_wait_ends_at_its_deadline_after_several_polls(bell, monkeypatch):
    monkeypatch.setattr(doorbell, "MAX_POLL_MILLISECONDS", 20.0)
    looks, start = [], time.monotonic()
    assert not Waiter(bell).wait(lambda: looks.append(1), 0.1)
    assert time.monotonic() - start >= 0.1
    assert len(looks) > 2
