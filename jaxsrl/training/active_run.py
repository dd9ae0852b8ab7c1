"""A run while it trains, as its callbacks see it."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from agents.api import AnyAgent, LearnerState
from agents.ops.schedules import get_factors, set_factor
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.checkpoints.store import CheckpointSaveError
from jaxsrl.config.run_config import RunConfig
from jaxsrl.learner.loop import AnyLearner
from jaxsrl.metrics.evaluations import Evaluation, append_evaluation
from jaxsrl.metrics.sinks import Sinks
from jaxsrl.models.index import LockedModelsError
from jaxsrl.models.store import MODELS, ModelStore
from jaxsrl.training.reporter import update_metrics
from jaxsrl.training.run_state import state_to_arrays
from jaxsrl.training.setup import TrainingSetup
from jaxsrl.training.trainable import Trainable

if TYPE_CHECKING:
    from jaxsrl.training.train import TrainingLoop

STAGE = "env.stage"
_WAIT_SECONDS = 0.05


class ActiveRun:
    """A run between two updates: what callbacks read, and what they may do. Thread-safety: the main thread of the run.

    Attributes:
        directory: run directory.
        config: Configuration of the run.
        agent: Agent that is trained.
        spec: Specification of the environments.
    """

    def __init__(
        self, setup: TrainingSetup, trainable: Trainable, learner: AnyLearner, sinks: Sinks, loop: "TrainingLoop"
    ) -> None:
        self.directory: Path = setup.directory.path
        self.config: RunConfig = setup.config
        self.agent: AnyAgent = setup.agent
        self.spec: EnvSpec = setup.spec
        self._setup, self._trainable, self._learner, self._sinks, self._loop = setup, trainable, learner, sinks, loop
        self._started = time.perf_counter()

    @property
    def num_updates(self) -> int:
        """Updates done so far, also by earlier processes of this run."""
        return self._learner.num_updates

    @property
    def env_steps(self) -> int:
        """Env steps learned from so far."""
        return self.num_updates * self.config.env_steps_per_update

    @property
    def seconds(self) -> float:
        """Wall-clock time since this process started to train."""
        return time.perf_counter() - self._started

    @property
    def state(self) -> LearnerState:
        """Newest learner state, on its devices. The next update may overwrite its memory: copy what you keep."""
        return self._trainable.final_state()

    @property
    def is_interrupted(self) -> bool:
        """True once a signal or an error in a thread ends the run."""
        return bool(self._setup.lifecycle.stop_signal) or self._setup.lifecycle.should_stop()

    def is_at_multiple_of(self, env_steps: int) -> bool:
        """Returns whether the newest update is the first at or past a multiple of `env_steps`."""
        return self.config.reaches_multiple(self.num_updates, env_steps)

    def save_model(self, tags: Sequence[str] = (), **notes: Any) -> Path:
        """Saves the learner state into the run's model store, without experience and episodes; returns its directory.

        Args:
            tags: names by which it is found: "RUN@best".
            **notes: values by which queries find it.

        Raises:
            UserError: If a name is no tag, or the store is frozen.
            CheckpointSaveError: If it could not be written.
        """
        arrays = state_to_arrays(self.state, with_replay=False)
        metadata = {**self._setup.identity, "env_steps": self.env_steps}
        return ModelStore(self.directory / MODELS).save(self.num_updates, arrays, metadata, tags, **notes)

    def try_save_model(self, tags: Sequence[str]) -> bool:
        """Saves the learner state as `save_model` does; where that fails, writes it to the log.

        Returns:
            Whether it was saved.
        """
        return self.try_write(f"the model of update {self.num_updates}", lambda: self.save_model(tags))

    def try_write(self, what: str, write: Callable[[], Any]) -> bool:
        """Calls `write`; where the disk is full or the store frozen or in use, writes to the log that `what` was not saved.

        Returns:
            Whether it was.
        """
        try:
            write()
        except (OSError, CheckpointSaveError, LockedModelsError) as error:
            self.log(f"{what} was not saved: {error}; training continues")
            return False
        return True

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of the newest update and the means of recent episodes; fetches from the device."""
        return update_metrics(self._learner.metrics) | self._trainable.episode_metrics()

    def episodes(self) -> dict[str, float]:
        """Returns the means of recent episodes; empty before the first one has finished."""
        return self._trainable.episode_metrics()

    def should_stop(self) -> bool:
        """Returns whether the run ends before the next update: a signal came, or `stop` was called."""
        return self._loop.should_stop()

    def stop(self, reason: str) -> None:
        """Ends the run before the next update, with a checkpoint.

        Args:
            reason: a short sentence for the log, the terminal and `TrainReport.stop_reason`.

        Raises:
            UserError: If the reason is empty.
        """
        if not reason:
            raise UserError("a run stops for a reason: expected a short sentence, got an empty one")
        self._loop.request_stop(reason)

    @property
    def stage(self) -> int | None:
        """Stage that `set_stage` set last, also before a resume; None where resets have none."""
        return self._trainable.stage

    def set_stage(self, stage: int) -> None:
        """Sets the stage that environments receive with resets, `reset(options={"stage": n})`.

        It applies to the resets of the trajectory after the next `max_policy_lag + 2`, which may be collected already. A
        checkpoint contains it, so that a resumed run repeats all episodes.

        Args:
            stage: integer; `EnvConfig.stage` is the first one.

        Raises:
            UserError: If the stage is no integer, `EnvConfig.stage` is not set, or the plan's environments cannot be sent
                another stage.
        """
        if isinstance(stage, bool) or not isinstance(stage, int):
            raise UserError(f"expected an integer stage, got {stage!r}")
        self._trainable.set_stage(stage)
        self._loop.mark_unsaved()

    @property
    def values(self) -> Mapping[str, float]:
        """Present values that `set_value` changes, by name.

        "learning_rate_factor" multiplies the learning rate of every optimizer, "entropy_coef_factor" the weight of the entropy
        bonus of algorithms with one. "env.stage" is there where resets have a stage.
        """
        state, stage = self.state, self.stage
        factors = jax.device_get(get_factors((state.opt_state, state.extra)))
        values = {name: float(factor) for name, factor in factors.items()}
        return values if stage is None else {**values, STAGE: float(stage)}

    def set_value(self, name: str, value: float) -> None:
        """Changes a value of `values` from the next update on. Later checkpoints contain it.

        Raises:
            UserError: If the name is unknown, the value is out of range, or several processes learn.
        """
        if name not in self.values:
            raise UserError(f"unknown value {name!r}: this run can change {', '.join(self.values) or 'no value'}")
        if not math.isfinite(value):
            raise UserError(f"{name} must be finite: got {value}")
        if name == STAGE:
            if value != int(value):
                raise UserError(f"expected an integer {STAGE}, got {value}")
            self.set_stage(int(value))
        else:
            self._set_factor(name, value)
            self._loop.mark_unsaved()

    def _set_factor(self, name: str, factor: float) -> None:
        if factor < 0:
            raise UserError(f"{name} must not be negative: got {factor}")
        self.validate_control(f"change {name}")
        state = self.state
        opt_state, extra = set_factor((state.opt_state, state.extra), name, factor)
        self._learner.restore_learned(dataclasses.replace(state, opt_state=opt_state, extra=extra))

    def validate_control(self, action: str) -> None:
        """Raises UserError where the main thread does not stop all parts of the run, so that it cannot do the action."""
        if not self._loop.is_alone:
            raise UserError(
                f"a run of several learner processes cannot {action}, since each waits for the others with a deadline: stop "
                f"it; the same command resumes it"
            )
        self._trainable.validate_control(action)

    def save(self) -> bool:
        """Writes a checkpoint now; returns whether it was written.

        Raises:
            UserError: If the run has several learner processes, which only save together at their interval.
        """
        return self._loop.save_now()

    def wait(self, seconds: float) -> None:
        """Waits on purpose: the deadline of a stalled run does not count the time. A signal ends the wait early."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0.0 and not self.is_interrupted:
            self._loop.forgive_wait()
            self.should_stop()
            time.sleep(min(left, _WAIT_SECONDS))

    def log(self, line: str) -> None:
        """Writes a line to the run's log, and to the terminal unless the run is quiet."""
        self._setup.log(line)

    def report_evaluation(self, evaluation: Evaluation) -> bool:
        """Records an evaluation of an earlier version, and passes it to the sinks and to all callbacks.

        Returns:
            Whether it is in the file of evaluations.
        """
        what = f"the evaluation of update {evaluation.update}"
        is_saved = self.try_write(what, lambda: append_evaluation(self.directory, evaluation))
        self._sinks.write_evaluation(evaluation)
        self._loop.call("on_evaluation", evaluation)
        return is_saved
