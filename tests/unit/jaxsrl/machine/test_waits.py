"""Waits for other threads: how long they take, and that they outlast a pause of the process."""

from concurrent.futures import Future

import jax
import pytest

from jaxsrl.datasets.manifest import Manifest
from jaxsrl.learner.sample_preparer import SamplePreparer
from jaxsrl.machine.waits import wait_for_result, wait_in_slices
from jaxsrl.replay.bounded_queue import BoundedQueue
from jaxsrl.training.step_recorder import StepRecorder
from tests.support.dataset_steps import EXTRAS, ROWS, SPEC

SECONDS = 60.0


def pause_in_first_wait(monkeypatch, condition, act):
    """The process is stopped in the first wait, until after its deadline. The other thread acts in the second one."""
    waits = []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            act()

    monkeypatch.setattr(condition, "wait", wait)
    monkeypatch.setattr(condition, "wait_for", lambda is_over, seconds: wait(seconds) or is_over())


def late_result(monkeypatch, value):
    future = Future()
    pause_in_first_wait(monkeypatch, future._condition, lambda: future.set_result(value))
    return future


@pytest.mark.parametrize("timeout", [0.0, 0.04, 8.0, 10.5, 1800.0, 1e6])
def test_slices_together_are_as_long_as_the_timeout(timeout):
    slices = []
    assert not wait_in_slices(slices.append, timeout)
    assert sum(slices) == pytest.approx(timeout)
    assert max(slices) <= min(1.0, timeout / 8)


def test_no_slice_follows_a_successful_one():
    answers = iter([False, True])
    assert wait_in_slices(lambda seconds: next(answers), SECONDS)


def test_a_result_has_a_deadline_and_an_error_passes():
    with pytest.raises(TimeoutError, match=r"^$"):
        wait_for_result(Future(), 0.01)
    failed = Future()
    failed.set_exception(TimeoutError("the disk did not answer"))
    with pytest.raises(TimeoutError, match="the disk did not answer"):
        wait_for_result(failed, SECONDS)


def test_get_outlasts_a_pause_of_the_process(monkeypatch):
    queue = BoundedQueue(1)
    pause_in_first_wait(monkeypatch, queue._changed, lambda: queue.put("item", SECONDS))
    assert queue.get(SECONDS) == "item"


def test_put_outlasts_a_pause_of_the_process(monkeypatch):
    queue = BoundedQueue(1)
    queue.put("first", SECONDS)
    pause_in_first_wait(monkeypatch, queue._changed, lambda: queue.get(SECONDS))
    queue.put("second", SECONDS)
    assert queue.get(SECONDS) == "second"


def test_a_prepared_sample_outlasts_a_pause(monkeypatch):
    preparer = SamplePreparer(None, jax.local_devices()[:1], jax.random.key(0), 0, SECONDS)
    preparer._requests.append(late_result(monkeypatch, "sample"))
    assert preparer.get() == "sample"
    preparer.close()


def test_a_recorder_outlasts_a_pause(monkeypatch, tmp_path):
    recorder = StepRecorder(tmp_path / "set", Manifest(SPEC, ROWS, EXTRAS), 0, SECONDS)
    recorder._pending.append(late_result(monkeypatch, None))
    recorder.commit()
    recorder.close()
