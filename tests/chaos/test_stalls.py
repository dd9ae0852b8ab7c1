"""Parts of a run that wait for ever: the run ends with an error that says who waits for whom, and nothing is left."""

import re
import subprocess
import threading
from unittest import mock

import pytest

from envpool_bridge.errors import UserError, WaitTimeoutError
from jaxsrl.collect.params.shared_memory import SharedParams
from jaxsrl.collect.params.store import ParamsStore
from jaxsrl.config.run_config import RunConfig
from jaxsrl.learner.parameter_server.async_replica import AsynchronousReplica
from jaxsrl.machine.lifecycle import Lifecycle
from jaxsrl.replay import prefetch
from jaxsrl.replay.bounded_queue import BoundedQueue
from jaxsrl.replay.prefetch import PrefetchingSampler
from jaxsrl.training.watchdog import StalledError, Watchdog
from tests.chaos.sessions import begin_session, end_session, members, seconds_until_gone
from tests.chaos.stuck_run import STUCK_AFTER, deadline_from_now, train
from tests.integration.test_replay import train as train_from_replay

PATIENCE_SECONDS = 300.0  # of a whole process, beside other tests


def unpublished(owner, shorten):
    """Every version after the first few is lost on its way."""
    publish = owner.publish

    def lose(self, version, params):
        if version < STUCK_AFTER:
            publish(self, version, params)
        else:
            shorten()

    return mock.patch.object(owner, "publish", lose)


slow = pytest.mark.slow


@pytest.mark.parametrize("lag", [pytest.param(0, marks=slow), 1, pytest.param(2, marks=slow)])
def test_a_store_without_the_wanted_version_ends_the_run(tmp_path, lag):
    with deadline_from_now() as shorten, unpublished(ParamsStore, shorten), pytest.raises(StalledError) as raised:
        train(tmp_path, "single_learner_fine", max_policy_lag=lag)
    newer = " or newer" if lag == 2 else ""
    newest = STUCK_AFTER - 1
    assert f"the learner waits for the trajectory of update {STUCK_AFTER + lag + 1}" in str(raised.value)
    assert (
        f"inference server 0 waits for parameters of version {STUCK_AFTER}{newer} from the learner "
        f"(newest published: {newest})" in str(raised.value)
    )


@slow
def test_a_store_of_a_run_in_one_process_likewise(tmp_path):
    with deadline_from_now() as shorten, unpublished(ParamsStore, shorten), pytest.raises(StalledError) as raised:
        train(tmp_path, "serial", max_policy_lag=0)
    assert f"the environments wait for parameters of version {STUCK_AFTER} from the learner" in str(raised.value)


@pytest.mark.slow
def test_actors_without_the_wanted_version_end_the_run(tmp_path):
    with deadline_from_now() as shorten, unpublished(SharedParams, shorten), pytest.raises(StalledError) as raised:
        train(tmp_path, "single_learner_coarse", max_policy_lag=1)
    assert f"an actor waits for parameters of version {STUCK_AFTER} from the learner" in str(raised.value)
    assert f"the learner waits for the trajectory of update {STUCK_AFTER + 2}" in str(raised.value)


@pytest.mark.slow
def test_stuck_async_replica_ends_the_run(tmp_path, monkeypatch):
    update, released = AsynchronousReplica.update, threading.Event()
    monkeypatch.setattr(Lifecycle.join, "__defaults__", (1.0,))  # in place of 30 s
    with deadline_from_now() as shorten:

        def stuck(self, batch, should_stop):
            if self._number == 1 and self._server.trajectories_completed(1) == STUCK_AFTER:
                shorten()
                released.wait()
            return update(self, batch, should_stop)

        monkeypatch.setattr(AsynchronousReplica, "update", stuck)
        try:
            with pytest.raises(StalledError) as raised:
                train(tmp_path, "central", learner_gradients="asynchronous", learner_num_devices=2, pool_num_workers=2)
        finally:
            released.set()
    assert f"replica 1 has not completed its trajectory of update {STUCK_AFTER + 1}" in str(raised.value)
    assert raised.value.__notes__ == ["thread replica 1 did not stop within 1.0 s"]


def test_a_learner_without_its_sample_ends_the_run(tmp_path, monkeypatch):
    request, draw, released, limits = PrefetchingSampler.request, PrefetchingSampler._draw, threading.Event(), []

    def stick(self, keys):
        limits.append(self._timeout)
        if len(limits) == STUCK_AFTER:
            self._timeout = 1.0
        request(self, keys)

    def stuck(self, key):
        if len(limits) >= STUCK_AFTER:
            released.wait()
        draw(self, key)

    monkeypatch.setattr(PrefetchingSampler, "request", stick)
    monkeypatch.setattr(PrefetchingSampler, "_draw", stuck)
    monkeypatch.setattr(prefetch, "_JOIN_SECONDS", 0.5)
    try:
        with pytest.raises(WaitTimeoutError) as raised:
            train_from_replay(tmp_path, "serial", replay_memory="host", stall_timeout_seconds=1234.0)
    finally:
        released.set()
    assert limits == [1234.0] * STUCK_AFTER  # of the run
    message = "thread MainThread waited 1 s to sample 1 samples from the thread replay-sampler: 0 are inserted"
    assert re.sub(r"\d+ are", "0 are", str(raised.value)).startswith(message)
    assert "expected the thread replay-sampler to end within 0.5 s" in raised.value.__notes__[0]


@pytest.mark.parametrize("what", ["insert", "sample"])
def test_a_queue_names_the_thread_that_waits_and_the_item(what):
    queue: BoundedQueue[None] = BoundedQueue(1, "trajectories of the environments")
    queue.put(None, 0.0)
    if what == "sample":
        queue.get(0.0)
    message = f"thread MainThread waited 0.01 s to {what} 1 trajectories of the environments: 1 are inserted"
    with pytest.raises(WaitTimeoutError, match=message):
        queue.put(None, 0.01) if what == "insert" else queue.get(0.01)


@pytest.mark.parametrize(
    ("what", "who"),
    [
        (
            "update",
            rf"the learner has not finished update {STUCK_AFTER + 1}\b.* inference server 0 waits for parameters",
        ),
        pytest.param(
            "act",
            r"the learner waits for the trajectory of update \d+.* inference server 0 has not returned actions for",
            marks=slow,
        ),
    ],
)
def test_native_code_that_does_not_return_ends_the_process(tmp_path, what, who):
    program = f"from tests.chaos.stuck_run import main; main({what!r}, {str(tmp_path)!r})"
    process = begin_session(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        seconds_until_gone(process.pid, PATIENCE_SECONDS)
        assert not members(process.pid)
    finally:
        end_session(process)
    assert process.returncode == 1, err
    assert re.search(rf"the run is stalled: nothing happened for .*{who}", err), err
    assert "in in_native_code" in err or what == "act"  # the stack of the main thread


def test_progress_of_any_part_restarts_the_deadline():
    counts, pause = {"steps": 0.0}, threading.Event()
    watchdog = Watchdog(1.0, lambda: dict(counts), lambda is_waiting: ["a waits for b"], lambda text: None)

    def wait_for_ever():
        while True:
            pause.wait(0.1)
            watchdog.check()

    with watchdog.watching():
        for _ in range(40):  # 4 s in all
            counts["steps"] += 1.0
            pause.wait(0.1)
            watchdog.check()
        message = r"nothing happened for \d+ s \(--run.stall-timeout-seconds 1\): a waits for b"
        with pytest.raises(StalledError, match=message):
            wait_for_ever()
        watchdog.check()  # raised once: the end of the run may wait


def test_watchdog_accepts_a_long_update_that_just_ended():
    counts = {"updates": 0.0}
    watchdog = Watchdog(5.0, lambda: dict(counts), lambda is_waiting: [], lambda text: None)
    watchdog._look()
    watchdog._since -= 6.0  # as after an update of 6 s
    counts["updates"] += 1.0
    watchdog.check()


@pytest.mark.parametrize("seconds", [0.0, -1.0, 2e9])
def test_a_deadline_that_cannot_be_is_rejected(seconds):
    with pytest.raises(UserError, match=r"run.stall_timeout_seconds must be positive, and at most 1e\+09"):
        RunConfig(stall_timeout_seconds=seconds)
