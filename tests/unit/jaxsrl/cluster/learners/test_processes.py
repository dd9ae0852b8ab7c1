"""Words of jax's coordination service in ours."""

import contextlib

import jax
import pytest

from envpool_bridge.errors import WorkerError
from jaxsrl.cluster.learners import processes as module
from jaxsrl.cluster.learners.processes import LostLearnerError, Processes


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
        return [(key, text) for key, text in self.sent.items() if key.startswith(prefix)]


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
    sent = {"jaxsrl/failed/1": f"WorkerError: {error}"} if raised is WorkerError else {}
    assert client.sent == sent  # the others raise the failure of the environment
