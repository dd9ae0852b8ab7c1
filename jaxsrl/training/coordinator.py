"""Coordination of learner processes: that of a run with one process; `jaxsrl.cluster.learners` has that of several."""

from collections.abc import Callable
from typing import Any

from jaxsrl.checkpoints.store import Arrays, Restored
from jaxsrl.training.trainable import Trainable


class Coordinator:
    """The learner processes of a run, seen from one of them; here it is the only one.

    Attributes:
        is_main: whether this process writes the run directory.
        is_alone: whether it is the only process.
        wait_seconds: longest wait for another process.
        stopped_by: the signal or reason that stops all processes before the next update; "" while they continue.
    """

    is_main = True
    is_alone = True
    wait_seconds = 0
    stopped_by = ""

    def validate_identity(self, identity: dict[str, Any]) -> None:
        """Compares what this process is to run with what process 0 runs.

        Raises:
            UserError: If they differ; lists how.
        """

    def request_stop(self, reason: str) -> bool:
        """Asks all processes to stop before the same update; returns False where this process may stop at once.

        Args:
            reason: name of a signal, or a sentence.
        """
        del reason
        return False

    def decide(self, own: bool) -> bool:
        """Returns the decision of process 0; all processes call it together."""
        return own

    def restore(self, restore: Callable[[], Restored | None]) -> Restored | None:
        """Returns the checkpoint that `restore` finds at process 0; all processes call it together.

        Raises:
            UserError: process 0 rejects its checkpoints.
        """
        return restore()

    def split_rows(self, arrays: Arrays) -> Arrays:
        """Returns a checkpoint of all rows with only the rows of this process."""
        return arrays

    def merge_rows(self, arrays: Arrays) -> Arrays:
        """Returns a checkpoint of the rows of this process with those of all; all processes call it together."""
        return arrays

    def send_metrics(self, num_updates: int, trainable: Trainable) -> None:
        """Sends the metrics of this process to process 0 now and then; called after each update."""

    def merge_totals(self, own: dict[str, float]) -> dict[str, float]:
        """Returns totals of all processes at process 0, and `own` elsewhere."""
        return own

    def merge_episodes(self, own: dict[str, float]) -> dict[str, float]:
        """Returns episode means of all processes at process 0, and `own` elsewhere."""
        return own
