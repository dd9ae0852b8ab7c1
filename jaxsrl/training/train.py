"""The training loop: restore or initialize, then update, checkpoint and record until the budget is spent or a stop is requested."""

import contextlib
import signal
import time
from collections.abc import Sequence
from typing import Any

import jax

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.run_directory import NUM_UPDATES
from jaxsrl.checkpoints.store import CheckpointSaveError
from jaxsrl.learner.finite_watch import NotFiniteError
from jaxsrl.learner.loop import AnyLearner
from jaxsrl.machine.lifecycle import stop_on_signals
from jaxsrl.machine.provenance import read_provenance
from jaxsrl.metrics.live_state import RunInfo
from jaxsrl.metrics.machine_usage import MachineUsage
from jaxsrl.metrics.make_sinks import make_sinks
from jaxsrl.metrics.sinks import Sinks
from jaxsrl.plan.plan import plan_to_json
from jaxsrl.training.active_run import ActiveRun
from jaxsrl.training.callbacks import Callback
from jaxsrl.training.coordinator import Coordinator
from jaxsrl.training.reporter import Reporter
from jaxsrl.training.run_checkpoints import RunCheckpoints
from jaxsrl.training.setup import RunReport, TrainingSetup
from jaxsrl.training.trainable import Trainable
from jaxsrl.training.watchdog import Watchdog

_MOST_LINES = 20
_DISK_SECONDS, _WAIT_SECONDS = 15.0, 0.1
_PROGRESS = frozenset({"calls", "rows", "samples", "gradients", "env_steps", "slots", "replayed_steps_total"})
"""Last parts of the names of totals that grow only while the run makes progress; counts of failures grow without."""


class TrainingLoop:
    """One run; `run` is called once. Thread-safety: one thread, except `counts` and `waits`.

    Args:
        setup: Setup of the run.
        trainable: the learner with its environments.
        coordinator: Coordinator of the learner processes.
        callbacks: called while it trains, in this order.

    Attributes:
        stop_reason: why a stop rule or a callback ends the run; "" while none does.
    """

    def __init__(
        self, setup: TrainingSetup, trainable: Trainable, coordinator: Coordinator, callbacks: Sequence[Callback] = ()
    ) -> None:
        self.stop_reason = ""
        self._setup, self._trainable, self._coordinator = setup, trainable, coordinator
        self._callbacks = callbacks if coordinator.is_main else ()
        self._takes_episodes = any(type(each).on_episode is not Callback.on_episode for each in self._callbacks)
        self._active: ActiveRun | None = None
        self._learner: AnyLearner | None = None
        self._checkpoints = RunCheckpoints(setup, trainable, coordinator)
        self._reporter: Reporter | None = None
        self._is_done = self._is_changed = False
        # A wait for other processes has a deadline of its own, which must end first.
        limit = setup.config.stall_timeout_seconds + coordinator.wait_seconds
        self._watchdog = Watchdog(limit, self.counts, self.waits, setup.directory.log)

    def run(self) -> RunReport:
        """Trains from the newest checkpoint, if there is any, until the budget is spent or a stop is requested."""
        setup, config, trainable = self._setup, self._setup.config, self._trainable
        started = time.perf_counter()
        first = trainable.restore_or_init(self._checkpoints.restore())
        identity = {**setup.identity, NUM_UPDATES: config.num_updates}
        if changed := setup.directory.record(identity, plan_to_json(setup.plan)):
            setup.log(changed)
        if first < config.num_updates:
            setup.directory.add_provenance(read_provenance())
        elif not self._has_work(first):
            setup.directory.log("already complete")
            return self._report(first, first, 0.0)
        sinks = self._make_sinks(first)
        with contextlib.ExitStack() as held:
            held.enter_context(stop_on_signals(self._stop, config.shutdown_timeout_seconds))
            held.enter_context(self._watchdog.watching())
            held.callback(sinks.close)
            for callback in self._callbacks:
                held.callback(callback.close)
            held.push(lambda kind, failure, trace: trainable.close(failure))
            held.push(lambda kind, failure, trace: setup.lifecycle.join(failure=failure))
            self._learner = learner = trainable.start()
            self._reporter = self._make_reporter(sinks, learner, started)
            self._active = ActiveRun(setup, trainable, learner, sinks, self)
            held.push(self._end_by_error)
            trainable.check_restored(self.should_stop)
            if self._takes_episodes:
                trainable.take_episodes()  # from here on they are kept
            self.call("on_start")
            while learner.num_updates < config.num_updates and not self.should_stop():
                if trainable.step():
                    self.after_update(learner)
            self._is_done = True
            setup.lifecycle.raise_error()
            is_unsaved = self._is_changed or learner.num_updates > max(first, self._checkpoints.saved_update or 0)
            if self._coordinator.decide(is_unsaved):  # only process 0 knows whether its last save failed
                self._save_last(learner)
            self.call("on_stop", setup.lifecycle.stop_signal or self.stop_reason or "complete")
            if self._reporter.has_news:
                self._write_record()
        return self._report(first, learner.num_updates, time.perf_counter() - started)

    def _has_work(self, num_updates: int) -> bool:
        """Returns whether a callback needs a run whose updates are complete; all processes call it together."""
        config, path = self._setup.config, self._setup.directory.path
        return self._coordinator.decide(any(each.has_work(config, path, num_updates) for each in self._callbacks))

    def after_update(self, learner: AnyLearner) -> None:
        """Rolls back where learning diverged; calls callbacks, saves, sends metrics and writes a record where one is due.

        Callbacks come first: the checkpoint of an update contains what they have changed after it.
        """
        config = self._setup.config
        self._coordinator.send_metrics(learner.num_updates, self._trainable)
        if learner.too_many_nonfinite:
            self._roll_back(learner)
        if self._takes_episodes and (episodes := self._trainable.take_episodes()):
            self.call("on_episode", episodes)
        self.call("on_update")
        interval = config.checkpoint.interval_updates
        if interval and learner.num_updates % interval == 0 and self._checkpoints.has_news(learner):
            self._save_if_new()
        # The end of the run writes the record of its last update, after the last save.
        is_last = learner.num_updates >= config.num_updates or self.should_stop()
        if self._reporter is not None and not is_last and self._reporter.due(config.metrics.interval_seconds):
            self._write_record()

    def should_stop(self) -> bool:
        """Returns whether to stop before the next update; called wherever the main thread waits.

        Raises:
            StalledError: nothing has happened for too long.
        """
        self._watchdog.check()
        lifecycle, stopped_by = self._setup.lifecycle, self._coordinator.stopped_by
        if stopped_by in signal.Signals.__members__:
            lifecycle.stop_signal = stopped_by
        elif stopped_by:
            self.stop_reason = stopped_by
        return bool(stopped_by or self.stop_reason) or lifecycle.should_stop()

    def request_stop(self, reason: str) -> None:
        """Stops all learner processes before the same update, for a reason that is no signal."""
        if not self._coordinator.request_stop(reason):
            self.stop_reason = self.stop_reason or reason

    @property
    def is_alone(self) -> bool:
        """True for a run of one learner process."""
        return self._coordinator.is_alone

    def mark_unsaved(self) -> None:
        """Makes the next save write a checkpoint, although no update follows the newest one."""
        self._is_changed = True

    def save_now(self) -> bool:
        """Writes a checkpoint; returns whether it was written.

        Raises:
            UserError: If the run has several learner processes, which save together.
        """
        if not self._coordinator.is_alone:
            raise UserError(
                "a run of several learner processes saves at its interval: use --checkpoint.interval-updates"
            )
        return self._save_if_new()

    def forgive_wait(self) -> None:
        """Excludes the time since the last progress from the deadline of a stalled run."""
        self._watchdog.forgive()

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function of every callback. An error ends the run, after a checkpoint."""
        for callback in self._callbacks:
            getattr(callback, name)(self._active, *arguments)

    def _end_by_error(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        """Writes to the log which error ends the run, and saves the updates since the newest checkpoint."""
        learner, log = self._learner, self._setup.directory.log
        if error is None or learner is None:
            return
        log(f"ends by an error after update {learner.num_updates}: {_shorten(error)}")
        # Errors of saves and of updates that are not finite leave nothing better to save; other processes would not save along.
        if isinstance(error, CheckpointSaveError | NotFiniteError) or not isinstance(error, Exception):
            return
        if self._coordinator.is_alone and learner.num_updates > 0 and self._checkpoints.has_news(learner):
            try:
                self._save_if_new()
            except Exception as failure:  # noqa: BLE001  the first error ends the run
                log(f"the updates since the newest checkpoint are lost: {_shorten(failure)}")

    def counts(self) -> dict[str, float]:
        """Returns counts that grow while the run makes progress; from any thread, without a wait."""
        reporter = self._reporter
        own = {} if reporter is None else {"updates": reporter.num_updates, "saved": reporter.checkpoint_update}
        return own | select_progress(self._trainable.totals())

    def waits(self, is_waiting: bool) -> list[str]:
        """Returns a sentence for each part of the run on what it waits for; from any thread, without a wait.

        Args:
            is_waiting: whether the learner waits for a trajectory. Otherwise it computes or writes.
        """
        if self._reporter is None:
            return ["the environments, policies and learner have not started", *self._trainable.waits()]
        number = self._reporter.num_updates + 1
        own = (
            f"the learner waits for the trajectory of update {number}"
            if is_waiting
            else f"the learner has not finished update {number}, or what it writes before that update"
        )
        return [own, *self._trainable.waits()]

    def _stop(self, signal_name: str) -> None:
        """Handles a signal: all learner processes stop before the same update, and this one alone after its last."""
        lifecycle = self._setup.lifecycle
        if self._is_done or not self._coordinator.request_stop(signal_name):
            lifecycle.stop_signal = signal_name
            lifecycle.stop()

    def _save_if_new(self) -> bool:
        """Saves unless the newest checkpoint is that of this update; returns whether there is one of it."""
        learner = self._learner
        if learner is None:
            return False
        if self._checkpoints.saved_update == learner.num_updates and not self._is_changed:
            return True
        return self._save(learner)

    def _roll_back(self, learner: AnyLearner) -> None:
        self._checkpoints.roll_back(learner)
        if self._reporter is not None:
            self._reporter.checkpoint_update = self._checkpoints.saved_update or 0
        self.call("on_roll_back", self._checkpoints.saved_update or 0)

    def _save(self, learner: AnyLearner, must: bool = False) -> bool:
        if not self._checkpoints.save(learner, must):
            return False
        self._is_changed = False
        if self._reporter is not None:
            self._reporter.checkpoint_update = learner.num_updates
        self.call("on_checkpoint", self._setup.directory.checkpoints / str(learner.num_updates))
        return True

    def _save_last(self, learner: AnyLearner) -> None:
        """Saves the end of the run. On a full disk it waits for room, until a signal comes."""
        lifecycle = self._setup.lifecycle
        while True:
            try:
                self._save(learner, must=True)
                return
            except CheckpointSaveError as error:
                if not error.is_disk_full or lifecycle.stop_signal or not self._coordinator.is_alone:
                    raise
                self._setup.log(f"{error}; waits for room on the disk, or for a signal to end without this checkpoint")
            end = time.monotonic() + _DISK_SECONDS
            while time.monotonic() < end and not lifecycle.stop_signal:
                self.forgive_wait()
                time.sleep(_WAIT_SECONDS)

    def _write_record(self) -> None:
        if self._reporter is not None:
            self._reporter.write({**self._episode_metrics(), **self._trainable.episode_timings()})

    def _episode_metrics(self) -> dict[str, float]:
        return self._coordinator.merge_episodes(self._trainable.episode_metrics())

    def _make_reporter(self, sinks: Sinks, learner: AnyLearner, started: float) -> Reporter:
        setup = self._setup

        def totals() -> dict[str, float]:
            return self._coordinator.merge_totals(self._trainable.totals())

        steps = setup.config.env_steps_per_update
        machine = MachineUsage(jax.local_devices()).values if self._coordinator.is_main else dict
        reporter = Reporter(sinks, learner, totals, steps, setup.spec.action_repeat, setup.plan, machine, started)
        reporter.checkpoint_update = learner.num_updates
        return reporter

    def _make_sinks(self, first: int) -> Sinks:
        """Returns the sinks of the process that writes records, for a run that continues after `first` updates."""
        if not self._coordinator.is_main:
            return Sinks([])
        setup, config = self._setup, self._setup.config
        info = RunInfo(
            title=str(setup.directory.path),
            plan=setup.plan,
            total_env_steps=config.num_updates * config.env_steps_per_update,
            action_repeat=setup.spec.action_repeat,
            first_update=first,
            first_env_steps=first * config.env_steps_per_update,
        )
        return make_sinks(config.metrics, setup.directory.path, info, setup.log, setup.quiet)

    def _report(self, first: int, num_updates: int, seconds: float) -> RunReport:
        """Returns the report of a process that continued after `first` updates; logs how it ended."""
        setup = self._setup
        env_steps, before = (updates * setup.config.env_steps_per_update for updates in (num_updates, first))
        stopped = setup.lifecycle.stop_signal
        how = f"stopped by {stopped}" if stopped else f"stopped: {self.stop_reason}" if self.stop_reason else "complete"
        why = ""
        if self.stop_reason and not stopped and num_updates >= setup.config.num_updates:
            how, why = "complete", f": {self.stop_reason}"  # a budget of gradient steps, or a rule at the last update
        done = f"update {num_updates}, {env_steps} {setup.config.step_unit}, {seconds:.1f} s"
        setup.directory.log(f"{how} at {done}{why}")
        state, metrics = self._trainable.final_state(), self._episode_metrics()
        path, reason = setup.directory.path, self.stop_reason
        repaired = 0 if self._reporter is None else self._reporter.repaired_outputs
        return RunReport(path, state, num_updates, env_steps, seconds, metrics, stopped, reason, True, before, repaired)


def _shorten(error: BaseException) -> str:
    """Returns an error's type and the first lines of its text."""
    return "\n".join(f"{type(error).__name__}: {error}".splitlines()[:_MOST_LINES])


def select_progress(totals: dict[str, float]) -> dict[str, float]:
    """Returns the totals that grow only while the run makes progress."""
    return {name: total for name, total in totals.items() if name.rpartition("/")[2] in _PROGRESS}
