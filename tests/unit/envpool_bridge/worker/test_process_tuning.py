"""Timer slack: set for the thread that asks and what it starts, and for nobody else."""

import ctypes
import threading

import pytest

from envpool_bridge.worker.process_tuning import wake_on_time


def slack():
    return ctypes.CDLL(None).prctl(30, 0, 0, 0, 0)  # PR_GET_TIMERSLACK


def test_slack_is_of_the_thread_that_sets_it_and_of_those_it_starts():
    before, found = slack(), []

    def inner():
        found.append(slack())

    def outer():
        wake_on_time(3)
        found.append(slack())
        thread = threading.Thread(target=inner)
        thread.start()
        thread.join()

    thread = threading.Thread(target=outer)
    thread.start()
    thread.join()
    assert found == [3, 3]
    assert slack() == before


def test_what_the_system_refuses_is_raised(monkeypatch):
    class Refuses:
        def prctl(self, *_):
            ctypes.set_errno(1)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Refuses())
    with pytest.raises(PermissionError, match="not permitted"):
        wake_on_time()
