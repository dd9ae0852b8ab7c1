"""Functions that a run calls while it trains: of a user, and of the parts that watch or steer a run."""

from collections.abc import Sequence
from pathlib import Path

from jaxsrl.config.run_config import RunConfig
from jaxsrl.metrics.episodes import Episode
from jaxsrl.metrics.evaluations import Evaluation
from jaxsrl.training.active_run import ActiveRun


class Callback:
    """Base class of callbacks. Each function does nothing here; override those that you need.

    All are called in the main thread of the run, of process 0 if it has several learner processes, and the run waits for them. An
    error of a callback ends the run with its traceback, after a checkpoint.
    """

    def on_start(self, run: ActiveRun) -> None:
        """Runs once, before the first update of this process."""

    def on_update(self, run: ActiveRun) -> None:
        """Runs after every update; plan `device_only` does several updates between two calls."""

    def on_episode(self, run: ActiveRun, episodes: Sequence[Episode]) -> None:
        """Runs after an update in which episodes finished; never with plan `device_only`, which only knows their totals."""

    def on_evaluation(self, run: ActiveRun, evaluation: Evaluation) -> None:
        """Runs when the evaluation of an earlier version is finished."""

    def on_checkpoint(self, run: ActiveRun, path: Path) -> None:
        """Runs after a checkpoint was written."""

    def on_roll_back(self, run: ActiveRun, update: int) -> None:
        """Runs after learning has returned to a checkpoint, because too many updates were not finite.

        Later checkpoints and models are removed by then. Updates are counted on.

        Args:
            run: the run.
            update: Update of the checkpoint.
        """

    def on_stop(self, run: ActiveRun, reason: str) -> None:
        """Runs once, after the last update and the last checkpoint.

        Args:
            run: the run.
            reason: "complete", the name of a signal, or the argument of `run.stop`.
        """

    def has_work(self, config: RunConfig, directory: Path, num_updates: int) -> bool:
        """Returns whether a run whose updates are complete starts again, because an earlier process ended too soon.

        Args:
            config: Configuration of the run.
            directory: run directory.
            num_updates: Number of updates of the newest checkpoint; above `config.num_updates` if the budget was lowered since.
        """
        del config, directory, num_updates
        return False

    def close(self) -> None:
        """Frees what the callback holds; runs once at the end, also after an error."""
