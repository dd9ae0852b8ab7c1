"""Words of jax's coordination service in ours."""

import pytest

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
