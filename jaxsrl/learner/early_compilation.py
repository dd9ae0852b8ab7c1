"""Compilation of an update while the rest of a run starts."""

import threading
from collections.abc import Callable
from concurrent.futures import Future

from agents.api import LearnerState, Metrics, Trajectory
from jaxsrl.learner.mesh import KeyedUpdate
from jaxsrl.machine.lifecycle import exit_without

_EXIT_SECONDS = 30.0


class EarlyUpdate:
    """An update that a thread makes while the run starts; its first call waits for that, and raises its error.

    Args:
        make: makes the update and compiles it. Where jax's settings differ between the calling thread and others, the first call
            compiles it a second time.
    """

    def __init__(self, make: Callable[[], KeyedUpdate]) -> None:
        self._made: Future[KeyedUpdate] = Future()
        self._thread = threading.Thread(target=self._run, args=(make,), name="compile update", daemon=True)
        exit_without(self._thread, wait_seconds=_EXIT_SECONDS)
        self._thread.start()

    def __call__(self, state: LearnerState, batch: Trajectory) -> tuple[LearnerState, Metrics]:
        return self._made.result()(state, batch)

    def join(self) -> None:
        """Waits until the update is made, as its first call would have done."""
        self._thread.join()

    def _run(self, make: Callable[[], KeyedUpdate]) -> None:
        try:
            self._made.set_result(make())
        except BaseException as error:  # noqa: BLE001  raised by the first call
            self._made.set_exception(error)
