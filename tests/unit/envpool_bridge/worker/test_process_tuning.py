"""Timer slack: set for the thread that asks and what it starts, and for nobody else."""

import ctypes
import threading

import pytest

from envpool_bridge.worker.process_tuning import wake_on_time


def slack():
    return ctypes.CDLL(None).prctl(30, 0, 0, 0, 0)  # PR_GET_TIMERSLACK


def test_timer_slack_applies_to_the_thread_and_its_children():
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


def test_timer_slack_raises_system_errors(monkeypatch):
    class Refuses:
        def prctl(self, *_):
            ctypes.set_errno(1)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Refuses())
    with pytest.raises(PermissionError, match="not permitted"):
        wake_on_time()
