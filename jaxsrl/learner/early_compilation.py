"""Compilation of an update while the rest of a run starts."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agents.api import LearnerState, Metrics, Trajectory
from jaxsrl.learner.mesh import KeyedUpdate


def compile_early(update: Any, state: LearnerState, batch: Trajectory) -> KeyedUpdate:
    """Starts to compile an update in a thread, and returns the update, whose first call waits for the end of that.

    Args:
        update: jitted; it compiles itself in the first call if that has other arguments than these.
        state: `jax.ShapeDtypeStruct`s with shardings.
        batch: of the same kind.

    Raises:
        Exception: the returned update raises what compilation raised.
    """
    thread = ThreadPoolExecutor(1, "compile update")  # the end of the process waits for it: jax cannot stop it
    compilation = thread.submit(lambda: update.lower(state, batch).compile())
    thread.shutdown(wait=False)

    def compiled_update(state: LearnerState, batch: Trajectory) -> tuple[LearnerState, Metrics]:
        compilation.result()
        return update(state, batch)

    return compiled_update
