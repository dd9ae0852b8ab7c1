"""What every kind of training shares: resuming, saving, records, the report, and an orderly end."""

import abc
import contextlib
import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from agents.api import AnyAgent, LearnerState
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.checkpoints.names import REPLAY
from jaxsrl.checkpoints.partial_restore import format_report
from jaxsrl.checkpoints.schema import Form, validate_match
from jaxsrl.checkpoints.store import Arrays, CheckpointSaveError, CheckpointStore, Restored, ValidateFn
from jaxsrl.collect.slot_layout import trajectory_shapes
from jaxsrl.config.run_config import RunConfig
from jaxsrl.learner.finite_watch import FiniteWatch, NotFiniteError
from jaxsrl.machine.lifecycle import Lifecycle, stop_on_signals
from jaxsrl.metrics.live_state import RunInfo
from jaxsrl.metrics.make_sinks import make_sinks
from jaxsrl.metrics.sinks import Sinks
from jaxsrl.plan.plan import Plan, plan_to_json
from jaxsrl.run_directory import RunDirectory
from jaxsrl.training.reporter import AnyLearner, Reporter
from jaxsrl.training.run_state import (
    holds_replay,
    learner_that_fits,
    replay_forms,
    restore_state,
    validate_learner,
    without_replay,
    without_rows,
)
from jaxsrl.training.watchdog import Watchdog

NOT_FINITE_BATCH = "not_finite_batch.npz"


@dataclasses.dataclass(frozen=True)
class RunReport:
    """Result of a run.

    Attributes:
        directory: run directory.
        state: final learner state.
        num_updates: updates done in all.
        env_steps: environment steps done in all.
        seconds: this process trained.
        metrics: episode means at the end.
        stopped_by: the signal that ended it early, or "".
        wrote_directory: whether this process wrote `directory`: of several learner processes, process 0 does.
    """

    directory: Path
    state: LearnerState = dataclasses.field(repr=False)
    num_updates: int
    env_steps: int
    seconds: float
    metrics: dict[str, float]
    stopped_by: str
    wrote_directory: bool = True


@dataclasses.dataclass(frozen=True)
class TrainingSetup:
    """One call of `run`, checked, with the run directory held.

    Attributes:
        plan: what to interpret.
        agent: what to train, for single frames. One that learns from replay only where that is on the host: elsewhere it has
            its replay around it (`jaxsrl.learner.learning_agent`).
        source: of environments.
        spec: of the source.
        config: of the run.
        directory: of the run.
        identity: what checkpoints say of the run: agent, experiment and spec.
        quiet: no output on the terminal.
    """

    plan: Plan
    agent: AnyAgent
    source: EnvSource
    spec: EnvSpec
    config: RunConfig
    directory: RunDirectory
    identity: dict[str, Any]
    quiet: bool


class Training(abc.ABC):
    """One run. `train` once."""

    def __init__(self, setup: TrainingSetup) -> None:
        """Nothing starts yet."""
        self.setup, self.config = setup, setup.config
        self.lifecycle = Lifecycle()
        # Independent streams for parameters, actions and updates.
        self.init_key, self.act_key, self.update_key = jax.random.split(jax.random.key(self.config.seed), 3)
        self._checkpoints = CheckpointStore(setup.directory.checkpoints, self.config.keep_checkpoints)
        self._saved_update = -1
        self._reporter: Reporter | None = None
        self._watchdog = Watchdog(self.stall_seconds(), self.counts, self.waits, setup.directory.log)

    @abc.abstractmethod
    def begin(self, arrays: Arrays | None) -> int:
        """Restores a checkpoint, or starts a run; returns the updates done so far."""

    @abc.abstractmethod
    def rows_fit(self, arrays: Arrays) -> bool:
        """Returns whether a checkpoint holds the state of this plan's environments."""

    @abc.abstractmethod
    def finished_state(self) -> LearnerState:
        """The state of a run that `begin` found complete."""

    @abc.abstractmethod
    def learn(self, sinks: Sinks) -> AnyLearner:
        """Trains until the budget is spent or the lifecycle stops."""

    def stall_seconds(self) -> float:
        """Returns the longest time in which nothing may happen."""
        return self.config.stall_timeout_seconds

    def counts(self) -> dict[str, float]:
        """Returns counts that grow while the run makes progress; from any thread, without a wait."""
        reporter = self._reporter
        return {} if reporter is None else {"updates": reporter.num_updates, "saved": reporter.checkpoint_update}

    def waits(self, is_waiting: bool) -> list[str]:
        """Describes what the parts of a run wait for, one sentence each; from any thread, without a wait.

        Args:
            is_waiting: whether the learner waits for a trajectory. Otherwise it computes or writes.
        """
        if self._reporter is None:
            return ["the environments, policies and learner have not started"]
        number = self._reporter.num_updates
        return [
            f"the learner waits for the trajectory of update {number + 1}"
            if is_waiting
            else f"the learner has not finished update {number + 1}, or what it writes before that update"
        ]

    def stops(self) -> bool:
        """Returns whether there is to be no other update; called wherever the main thread waits.

        Raises:
            StalledError: nothing has happened for too long.
        """
        self._watchdog.check()
        return self.should_stop()

    def should_stop(self) -> bool:
        """Whether there is to be no other update."""
        return self.lifecycle.should_stop()

    def episode_timings(self) -> dict[str, float]:
        """Wall-clock seconds of the last episodes, which no two runs share; empty where they are not known."""
        return {}

    @abc.abstractmethod
    def arrays(self, learner: AnyLearner) -> Arrays:
        """All that a checkpoint holds."""

    @abc.abstractmethod
    def episode_metrics(self) -> dict[str, float]:
        """Episode means."""

    def close(self) -> None:  # noqa: B027  nothing to free by default
        """Frees what `learn` took; its threads have stopped."""

    def train(self) -> RunReport:
        """Resumes or begins, and trains."""
        first = self.begin(self._restore())
        self.setup.directory.record(self.setup.identity, plan_to_json(self.setup.plan))
        if first >= self.config.num_updates:
            self.setup.directory.log("already complete")
            return self.report(self.finished_state(), first, 0.0)
        started = time.perf_counter()
        sinks = self.make_sinks(first)
        with stop_on_signals(self.on_signal, self.config.grace_seconds), self._watchdog.watching():
            failure: BaseException | None = None
            try:
                learner = self.learn(sinks)
                self.lifecycle.raise_error()
                if learner.num_updates > max(first, self._saved_update):
                    self.save(learner, must=True)
                self.write_record()
            except BaseException as error:
                failure = error
                raise
            finally:
                try:
                    self.lifecycle.join(failure=failure)
                finally:
                    del failure  # or its traceback, which holds this frame, would live on in a cycle
                    self.close()
                    sinks.close()
        return self.report(learner.state, learner.num_updates, time.perf_counter() - started)

    def report_on(self, reporter: Reporter, first: int) -> None:
        """Records are written by `reporter` from now on."""
        self._reporter = reporter
        reporter.checkpoint_update = first

    def after_update(self, learner: AnyLearner) -> None:
        """Saves and writes a record where one is due; between two updates."""
        if learner.is_stuck:
            self._on_not_finite(learner)
        every = self.config.checkpoint_every_updates
        if every and learner.num_updates % every == 0:
            self.save(learner)
        if self._reporter is not None and self._reporter.due(self.config.log_every_seconds):
            self.write_record()

    def write_record(self) -> None:
        """Writes a record now."""
        if self._reporter is not None:
            self._reporter.write({**self.episode_metrics(), **self.episode_timings()})

    def save(self, learner: AnyLearner, must: bool = False) -> None:
        """Writes a checkpoint of this moment.

        One that cannot be written is said and counted, and training goes on with those that there are.

        Args:
            learner: to save.
            must: raise instead.

        Raises:
            CheckpointSaveError: it could not be written, and it must.
        """
        update = learner.num_updates
        metadata = {**self.setup.identity, "env_steps": update * self.config.env_steps_per_update}
        try:
            self._checkpoints.save(update, self.arrays(learner), metadata)
        except CheckpointSaveError as error:
            if must:
                raise
            learner.stats.unsaved += 1
            self.say(f"{error}; training goes on")
            return
        self._saved_update = update
        if self._reporter is not None:
            self._reporter.checkpoint_update = update
        self.setup.directory.log(f"checkpoint at update {update}")

    def say(self, line: str) -> None:
        """Tells the log, and the terminal unless it is to be quiet."""
        self.setup.directory.log(line)
        if not self.setup.quiet:
            with contextlib.suppress(OSError):  # the terminal may be gone
                print(line, flush=True)  # noqa: T201

    def finite_watch(self) -> FiniteWatch:
        """What looks after updates that are not finite; a batch of too many in a row is written into the run's directory."""
        return FiniteWatch(self.config.max_skipped_updates, self.setup.directory.path / NOT_FINITE_BATCH)

    def newest_checkpoint(self, require: ValidateFn | None = None) -> Restored | None:
        """Restores the run's newest checkpoint; see `CheckpointStore.restore_newest`."""
        return self._checkpoints.restore_newest(validate=require)

    def _on_not_finite(self, learner: AnyLearner) -> None:
        """Rolls back or gives up."""
        happened = (
            f"{self.config.max_skipped_updates} updates in a row, the last of them {learner.num_updates}, came to NaN or infinity "
            f"and were left out; the batch is in {NOT_FINITE_BATCH} of {self.setup.directory.path}"
        )
        found = self.newest_checkpoint() if self.config.when_not_finite == "roll_back" else None
        if found is None:
            raise NotFiniteError(
                f"{happened}: look for rewards or observations that are not finite, use a smaller learning rate, or "
                f"--run.when-not-finite roll_back with --run.checkpoint-every-updates"
            )
        step, arrays, _, _ = found
        self.say(f"{happened}: goes on from what the checkpoint of update {step} had learned")
        learner.continue_from(restore_state(self.setup.agent, self.init_key, arrays))

    def _restore(self) -> Arrays | None:
        found = self.newest_checkpoint(None if self.config.partial else self._validate_fit)
        if found is None:
            self.setup.directory.log(f"begins: {self.config.num_updates} updates")
            return None
        step, arrays, metadata, problems = found
        for problem in problems:
            self.say(f"damaged checkpoint skipped: {problem}")
        self.say(f"resumes {self.setup.directory.path} at update {step} of {self.config.num_updates}")
        self._saved_update = step
        if metadata.get("env_steps", 0) != step * self.config.env_steps_per_update:
            self.say(
                f"env steps are now counted with the new run.num_envs x run.rollout_length: "
                f"{step * self.config.env_steps_per_update} so far; the checkpoint says {metadata.get('env_steps')}"
            )
        return self._what_continues(arrays, metadata)

    def _what_continues(self, arrays: Arrays, metadata: Mapping[str, Any]) -> Arrays:
        if self.setup.plan.replay is not None and not holds_replay(arrays):
            self.say("the checkpoint holds no experience (--run.no-checkpoint-replay): replay starts empty")
        if self.config.partial:
            arrays = self._what_fits(arrays)
        has_same_env, has_same_seed = self._has_same_environments(metadata)
        if not has_same_env and holds_replay(arrays):
            self.say("the checkpoint's experience is of another environment: replay starts empty")
            arrays = without_replay(arrays)
        if has_same_env and has_same_seed and self.rows_fit(arrays):
            return arrays
        self.say(
            "environments start new episodes: the checkpoint has no episodes that this plan can continue (another "
            "environment, number of rows or kind of plan)"
        )
        return without_rows(arrays)

    def _validate_fit(self, found: Mapping[str, Form]) -> None:
        try:
            validate_learner(self.setup.agent, self.init_key, found)
            if any(name.startswith(REPLAY) for name in found):
                validate_match(self._replay_forms(), found, REPLAY)
        except UserError as error:
            raise UserError(
                f"{error}\nchoose another --run.name, or restore the arrays that fit (--run.partial)"
            ) from error

    def _replay_forms(self) -> dict[str, Form]:
        setup = self.setup
        sizes = (setup.config.num_envs, setup.config.rollout_length)
        return replay_forms(setup.agent, self.init_key, trajectory_shapes(setup.agent, setup.spec, *sizes))

    def _what_fits(self, arrays: Arrays) -> Arrays:
        fitting, left_out = learner_that_fits(arrays, jax.jit(self.setup.agent.init)(self.init_key))
        if left_out:
            self.say(format_report(fitting, left_out))
        elif holds_replay(arrays):
            found = {name: (x.shape, x.dtype) for name, x in arrays.items() if name.startswith(REPLAY)}
            if found != self._replay_forms():
                self.say("partial restore: the checkpoint's experience does not fit: replay starts empty")
                return without_replay(arrays)
        return fitting

    def _has_same_environments(self, metadata: Mapping[str, Any]) -> tuple[bool, bool]:
        """Returns whether the environment is the checkpoint's, and whether the seed is."""
        saved, own = metadata.get("experiment", {}), self.setup.identity["experiment"]
        seeds = [experiment.get("run", {}).get("seed") for experiment in (saved, own)]
        return saved.get("env") == own.get("env"), seeds[0] == seeds[1]

    def make_sinks(self, first: int) -> Sinks:
        """Where records of a run that goes on after `first` updates are written."""
        path, config = self.setup.directory.path, self.config
        facts = RunInfo(
            title=str(path),
            plan=self.setup.plan,
            total_env_steps=config.num_updates * config.env_steps_per_update,
            action_repeat=self.setup.spec.action_repeat,
            first_update=first,
            first_env_steps=first * config.env_steps_per_update,
        )
        return make_sinks(config.metrics, path, facts, self.say, self.setup.quiet)

    def on_signal(self, name: str) -> None:
        """A signal asks the run to stop."""
        self.lifecycle.stop_signal = name
        self.lifecycle.stop()

    def report(self, state: LearnerState, num_updates: int, seconds: float) -> RunReport:
        """What the run came to, which the log is told too."""
        env_steps = num_updates * self.config.env_steps_per_update
        stopped = self.lifecycle.stop_signal
        how = f"stopped by {stopped}" if stopped else "complete"
        self.setup.directory.log(f"{how} at update {num_updates}, {env_steps} env steps, {seconds:.1f} s")
        path = self.setup.directory.path
        return RunReport(path, state, num_updates, env_steps, seconds, self.episode_metrics(), stopped)
