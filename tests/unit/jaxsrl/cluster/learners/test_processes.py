"""Words of jax's coordination service in ours."""

import contextlib
import json
import threading
import time

import jax
import pytest

from envpool_bridge.errors import UserError, WorkerError
from jaxsrl.cluster.learners import processes as module
from jaxsrl.cluster.learners.processes import FailedLearnerError, LostLearnerError, Processes
from jaxsrl.cluster.protocol.engine import ReplayLostError
from jaxsrl.machine.lifecycle import error_status


class Late:
    """A client whose barrier two processes do not reach; the message is jaxlib 0.10's."""

    def wait_at_barrier(self, name, milliseconds):
        raise RuntimeError(
            f"DEADLINE_EXCEEDED: Barrier timed out. Id: {name}::0. This usually happens because a task triggered the barrier too "
            "early or too slowly.\n# of tasks that reached the barrier: 1/3.\nThe first task at the barrier: 0. Some timed out "
            "task names:\n2\n1\n\n\nRPC: /xla.coordination.CoordinationService/Barrier [type.googleapis.com/tensorflow='']"
        )

    def key_value_dir_get(self, prefix):
        return []


def test_processes_that_do_not_come_are_named():
    processes = Processes(0, 3, 7, Late())
    with pytest.raises(LostLearnerError, match="process 0 of 3 waited for process 1, 2, 7 s at most"):
        processes.wait_at_barrier()


class Texts:
    """A client that keeps what is sent."""

    def __init__(self):
        self.sent = {}

    def key_value_set(self, key, text, allow_overwrite=False):
        self.sent[key] = text

    def key_value_dir_get(self, prefix):
        return [(key, text) for key, text in list(self.sent.items()) if key.startswith(prefix)]


def fail(processes, error):
    """Ends a process by an error, as in a run."""
    with contextlib.ExitStack() as held:
        held.callback(processes._abort.remove)
        with pytest.raises(type(error)), processes.together():
            raise error


@pytest.mark.parametrize(
    ("error", "raised", "status"),
    [
        (KeyError("of a callback"), FailedLearnerError, 1),
        (UserError("a bad input"), FailedLearnerError, 1),
        (WorkerError("environment worker 0 failed"), FailedLearnerError, 1),
        (ReplayLostError("the replay node is gone"), LostLearnerError, 75),
        (KeyboardInterrupt(), LostLearnerError, 75),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value),
)
def test_the_others_are_told_to_try_again_only_where_that_helps(error, raised, status):
    client = Texts()
    fail(Processes(1, 2, 60, client), error)
    other = Processes(0, 2, 60, client)
    with pytest.raises(
        raised, match=f"process 1 of 2 failed, and with it the run: {type(error).__name__}: "
    ) as failure:
        other.raise_failed()
    assert error_status(failure.value) == other._abort.status == status
    assert ("resumes from the newest checkpoint" in str(failure.value)) == (status == 75)
    assert "\n" not in str(failure.value)


def test_an_error_counts_before_what_others_lost_because_of_it():
    client = Texts()
    fail(Processes(1, 3, 60, client), KeyError("of a callback"))
    fail(Processes(0, 3, 60, client), ReplayLostError("the replay node is gone"))
    with pytest.raises(FailedLearnerError, match="process 1 of 3 failed"):
        Processes(2, 3, 60, client).raise_failed()


def test_process_0_stays_until_the_others_know_why_it_fails():
    client, others = Texts(), [Processes(number, 3, 60, None) for number in (1, 2)]
    main = Processes(0, 3, 60, client)

    def hear():
        while not any("failed" in key for key in client.sent):
            time.sleep(0.01)
        time.sleep(0.5)
        heard_at.append(time.monotonic())
        for other in others:
            other._client = client
            with pytest.raises(FailedLearnerError, match="process 0 of 3 failed"):
                other.raise_failed()

    heard_at = []
    thread = threading.Thread(target=hear)
    thread.start()
    fail(main, KeyError("of a callback"))
    assert heard_at
    assert heard_at[0] < time.monotonic() < heard_at[0] + module._HEARD_SECONDS - 1.0
    thread.join()


def test_process_0_does_not_wait_long_for_one_that_cannot_hear(monkeypatch):
    monkeypatch.setattr(module, "_HEARD_SECONDS", 0.5)
    started = time.monotonic()
    fail(Processes(0, 2, 60, Texts()), KeyError("of a callback"))
    assert 0.5 <= time.monotonic() - started < 5.0


def test_process_0_hands_on_the_failure_of_another(monkeypatch):
    """A collective breaks at process 0 when process 1 has failed; process 2 must hear of it before process 0 is gone."""
    monkeypatch.setattr(module, "_HEARD_SECONDS", 0.5)
    client = Texts()
    fail(Processes(1, 3, 60, client), KeyError("of a callback"))
    main, started = Processes(0, 3, 60, client), time.monotonic()
    with contextlib.ExitStack() as held:
        held.callback(main._abort.remove)
        with pytest.raises(FailedLearnerError, match="process 1 of 3 failed"), main.together():
            raise jax.errors.JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer")
    assert time.monotonic() - started >= 0.5


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (WorkerError("environment worker 0: ConnectionError: Connection closed"), WorkerError),
        (jax.errors.JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer"), LostLearnerError),
        (ValueError("UNKNOWN: Gloo all-reduce failed: Read error: Connection reset by peer"), LostLearnerError),
    ],
)
def test_errors_of_environments_are_no_losses_of_learners(monkeypatch, error, raised):
    monkeypatch.setattr(module, "_REASON_SECONDS", 0.0)
    client = Texts()
    processes = Processes(1, 2, 60, client)
    with contextlib.ExitStack() as held:
        held.callback(processes._abort.remove)
        with pytest.raises(raised), processes.together():
            raise error
    sent = {"jaxsrl/failed/1": json.dumps([False, f"WorkerError: {error}"])} if raised is WorkerError else {}
    assert client.sent == sent  # the others raise the failure of the environment
