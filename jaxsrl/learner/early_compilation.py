"""Compilation of an update while the rest of a run starts."""

from collections.abc import Callable
from concurrent.futures import Future

from agents.api import LearnerState, Metrics, Trajectory
from jaxsrl.learner.mesh import KeyedUpdate
from jaxsrl.machine.lifecycle import Lifecycle


def make_early(make: Callable[[], KeyedUpdate], lifecycle: Lifecycle) -> KeyedUpdate:
    """Starts to make an update in a thread; returns the update, whose first call waits for that, and raises its error.

    Args:
        make: makes the update and compiles it; jax's settings of the calling thread do not hold in it.
        lifecycle: of the run, which ends the thread.
    """
    made: Future[KeyedUpdate] = Future()

    def body() -> None:
        try:
            made.set_result(make())
        except BaseException as error:  # noqa: BLE001  raised by the first call
            made.set_exception(error)

    lifecycle.start_thread("compile update", body)

    def update(state: LearnerState, batch: Trajectory) -> tuple[LearnerState, Metrics]:
        return made.result()(state, batch)

    return update
