"""The part of a run that the training loop drives: a learner with everything that feeds it."""

from collections.abc import Callable, Sequence
from typing import Protocol

from agents.api import LearnerState
from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.store import Arrays
from jaxsrl.learner.loop import AnyLearner
from jaxsrl.metrics.episodes import Episode


class Trainable(Protocol):
    """A learner with its environments, replay and episode statistics.

    `restore_or_init` comes first, then `start`, then steps; `close` comes last. Thread-safety: one thread, except `totals` and
    `waits`.
    """

    def rows_fit(self, arrays: Arrays) -> bool:
        """Returns whether a checkpoint holds the state of this plan's environments."""
        ...

    def restore_or_init(self, arrays: Arrays | None) -> int:
        """Restores a checkpoint or initializes a run; returns the updates done so far. No environment starts."""
        ...

    def start(self) -> AnyLearner:
        """Starts the environments and compiles the learner."""
        ...

    def check_restored(self, should_stop: Callable[[], bool]) -> None:
        """Logs a warning about environments that did not return to their saved state."""

    def step(self) -> bool:
        """Runs the next updates; returns whether any was done within a short wait."""
        ...

    @property
    def stage(self) -> int | None:
        """Stage of later resets; None where resets have none."""
        return None

    def set_stage(self, stage: int) -> None:
        """Sets the stage that environments receive with later resets; call it between updates.

        Raises:
            UserError: If the environments of this plan have no stage that may change.
        """
        raise UserError(f"environments on devices receive no stage: use another --plan, got stage {stage}")

    def validate_control(self, action: str) -> None:
        """Raises UserError where parts of the run would continue while the main thread waits, so that it cannot do the action."""

    def final_state(self) -> LearnerState:
        """Returns the newest learner state, on one device where policies learn on devices of their own."""
        ...

    def to_arrays(self) -> Arrays:
        """Returns everything that a checkpoint holds."""
        ...

    def episode_metrics(self) -> dict[str, float]:
        """Returns episode means."""
        ...

    def take_episodes(self) -> Sequence[Episode]:
        """Returns the episodes that finished since the first or the last call; empty where only totals are known."""
        return ()

    def episode_timings(self) -> dict[str, float]:
        """Returns wall-clock seconds of the last episodes, which differ from run to run; empty where they are unknown."""
        return {}

    def totals(self) -> dict[str, float]:
        """Returns seconds and counts since the start, by metric name, of everything but the learner."""
        return {}

    def waits(self) -> list[str]:
        """Returns a sentence for each part of the run on what it waits for; from any thread, without a wait."""
        return []

    def close(self, failure: BaseException | None) -> None:
        """Stops the environments and frees everything.

        Args:
            failure: the error that ended the run; None after an orderly end.
        """
