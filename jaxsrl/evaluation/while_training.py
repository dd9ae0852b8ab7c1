"""Evaluation while a run trains: pinned versions are played by an evaluator process, in order, without stopping the run."""

import contextlib
import dataclasses
import json
import time
from collections import deque
from pathlib import Path
from typing import Any

from agents.api import AnyAgent
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.envs.stages import at_stage
from envpool_bridge.errors import UserError
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.registry import make_env
from jaxsrl.evaluation.curriculum import stage_at
from jaxsrl.evaluation.evaluator import Evaluator, EvaluatorDiedError
from jaxsrl.metrics.evaluations import Evaluation, read_evaluations
from jaxsrl.models.store import BEST, MODELS, PENDING, RETURN, ModelStore
from jaxsrl.training.active_run import ActiveRun
from jaxsrl.training.callbacks import Callback

OUTPUT = "evaluator.txt"
_POLL_SECONDS = 0.1
_MOST_FAILURES = 2


class EvaluateWhileTraining(Callback):
    """Pins a version at the first update at or past each multiple of `--eval.every`, and has it evaluated.

    Every version is played with the same seed, so results depend on the version alone. A resumed run evaluates the versions that
    an earlier process pinned and did not finish. The evaluator never receives what training uses. Training waits for it at its end,
    and with a curriculum before the next version is pinned: a change of the stage must not depend on timing.

    Args:
        agent: without replay around it.
        source: of the environments of the evaluation.
    """

    def __init__(self, agent: AnyAgent, source: EnvSource) -> None:
        self._agent, self._source = agent, source
        self._evaluator: Evaluator | None = None
        self._waiting: deque[_Task] = deque()
        self._done: dict[tuple[int, str], Evaluation] = {}
        self._best: Evaluation | None = None
        self._playing: _Task | None = None
        self._polled = 0.0
        # Polls since something last happened; not seconds, because the clock also runs while the process is paused.
        self._idle_polls = 0

    def on_start(self, run: ActiveRun) -> None:
        pinned = _pinned_versions(run.directory)
        # The others were worse than the best one, or a roll-back has abandoned them.
        known = _store(run).noted(RETURN).union(pinned)
        for evaluation in read_evaluations(run.directory):
            self._done[evaluation.update, evaluation.mode] = evaluation
            if evaluation.update in known:
                self._publish(run, evaluation, must_write=evaluation.update in pinned)
        for version in pinned:
            self._enqueue(run, version)
        # A process that was killed right after its checkpoint has not pinned the version of that.
        if run.num_updates and run.is_at_multiple_of(run.config.eval.every):
            self._change_stage(run)
            self._pin(run)

    def has_work(self, config: RunConfig, directory: Path, num_updates: int) -> bool:
        done = {(evaluation.update, evaluation.mode) for evaluation in read_evaluations(directory)}
        versions = {*_pinned_versions(directory), num_updates}
        return any((version, mode) not in done for version in versions for mode in config.eval.modes)

    def on_update(self, run: ActiveRun) -> None:
        if run.is_at_multiple_of(run.config.eval.every):
            self._change_stage(run)
            self._pin(run)
        now = time.monotonic()
        if now - self._polled >= _POLL_SECONDS:
            self._polled = now
            self._advance(run)

    def on_roll_back(self, run: ActiveRun, update: int) -> None:
        """Drops what waits for the evaluation of abandoned versions, whose models are gone, and tags the best one that is left."""
        self._waiting = deque(task for task in self._waiting if task.update <= update)
        if self._playing is not None and self._playing.update > update:
            self.close()
            self._playing = None
        store, mode = _store(run), run.config.eval.modes[0]
        noted = store.noted(RETURN)
        left = [each for each in self._done.values() if each.mode == mode and each.update in noted]
        self._best = max(left, key=lambda each: each.rank, default=None)
        if self._best is not None and store.tags().get(BEST) != self._best.update:
            best = str(self._best.update)
            run.try_write(f"the tag {BEST}", lambda: store.tag(BEST, best))

    def on_stop(self, run: ActiveRun, reason: str) -> None:
        del reason
        try:
            if run.is_interrupted:
                return
            self._pin(run)
            if self._waiting or self._playing:
                run.log(f"waits for {len(self._waiting) + (self._playing is not None)} evaluations")
            if not self._finish(run):
                run.log("evaluation takes longer than --run.stall-timeout-seconds: the run ends without the rest of it")
        finally:
            self.close()

    def close(self) -> None:
        """Ends the evaluator process; idempotent."""
        if self._evaluator is not None:
            self._evaluator.close()
            self._evaluator = None

    def _change_stage(self, run: ActiveRun) -> None:
        """Waits for the evaluations of earlier versions, and sets the stage that they decide; without a curriculum, does nothing.

        Raises:
            UserError: an evaluation takes too long, or the environments of the plan cannot be sent another stage.
        """
        if not run.config.curriculum.is_on:
            return
        if not self._finish(run):
            raise UserError("the curriculum waits for an evaluation that takes longer than --run.stall-timeout-seconds")
        stage = self._stage(run, run.num_updates)
        if stage != run.stage and not run.is_interrupted:
            run.log(f"stage {stage} from {run.env_steps:,} env steps on")
            run.set_stage(stage)

    def _stage(self, run: ActiveRun, update: int) -> int:
        """Returns the stage of a version by the run's curriculum."""
        config, first = run.config, run.spec.stage
        assert first is not None  # validated before the run
        # The stage changes at multiples only: a version between two of them trains at that of the earlier one.
        while update and not config.reaches_multiple(update, config.eval.every):
            update -= 1
        mode = config.eval.modes[0]
        # The last version of a shorter run may be between two multiples.
        regular = [
            each
            for each in self._done.values()
            if each.mode == mode and config.reaches_multiple(each.update, config.eval.every)
        ]
        return stage_at(config.curriculum, first, regular, update)

    def _finish(self, run: ActiveRun) -> bool:
        """Waits for all evaluations, or for a signal; returns False if nothing has happened for too long."""
        self._idle_polls = 0
        while (self._waiting or self._playing) and not run.is_interrupted:
            self._advance(run)
            if self._idle_polls * _POLL_SECONDS > run.config.stall_timeout_seconds:
                return False
            if self._waiting or self._playing:
                run.wait(_POLL_SECONDS)
                self._idle_polls += 1
        return True

    def _pin(self, run: ActiveRun) -> None:
        """Saves the newest version into the model store, unless it was evaluated or waits for it."""
        version = run.num_updates
        if all((version, mode) in self._done for mode in run.config.eval.modes) or any(
            task is not None and task.update == version for task in (*self._waiting, self._playing)
        ):
            return
        if run.try_save_model([f"{PENDING}{version}"]):
            self._enqueue(run, version)

    def _enqueue(self, run: ActiveRun, version: int) -> None:
        stage = self._stage(run, version) if run.config.curriculum.is_on else None
        tasks = [_Task(version, mode, stage) for mode in run.config.eval.modes if (version, mode) not in self._done]
        self._waiting += tasks
        if not tasks:
            _unpin(run, version)

    def _advance(self, run: ActiveRun) -> None:
        """Receives the result of the version that is played, and sends the next one."""
        try:
            if self._playing is not None and self._evaluator is not None:
                answer = self._evaluator.poll()
                if answer is None:
                    return
                task, self._playing = self._playing, None
                self._record(run, task, answer)
            if self._playing is None and self._waiting:
                self._evaluator = self._evaluator or Evaluator(self._agent, self._source, run.directory / OUTPUT)
                self._playing = self._waiting.popleft()
                self._evaluator.send(self._playing.to_json(run))
        except EvaluatorDiedError as error:
            self._retry(run, error)

    def _record(self, run: ActiveRun, task: "_Task", answer: dict[str, Any]) -> None:
        self._idle_polls = 0
        env_steps = task.update * run.config.env_steps_per_update
        names = {field.name for field in dataclasses.fields(Evaluation)}
        values = {name: value for name, value in answer.items() if name in names}
        values |= {"update": task.update, "env_steps": env_steps, "frames": env_steps * run.spec.action_repeat}
        evaluation = Evaluation(mode=task.mode, stage=task.stage, **values)
        self._done[task.update, task.mode] = evaluation
        is_saved = run.report_evaluation(evaluation)
        if self._publish(run, evaluation, must_write=True) and is_saved:
            self._release(run, task)  # otherwise the next process completes it

    def _publish(self, run: ActiveRun, evaluation: Evaluation, must_write: bool) -> bool:
        """Notes a return at its version, and moves the tag of the best one; a killed process may have done neither.

        Returns:
            Whether nothing is left to write.
        """
        if evaluation.mode != run.config.eval.modes[0]:
            return True
        is_best = self._best is None or evaluation.rank > self._best.rank
        if is_best:
            self._best = evaluation

        def write() -> None:
            _store(run).annotate(evaluation.update, **{RETURN: evaluation.mean_return})
            if is_best:
                _store(run).tag(BEST, str(evaluation.update))

        return not must_write or run.try_write(f"the return of update {evaluation.update}", write)

    def _release(self, run: ActiveRun, task: "_Task") -> None:
        """Unpins the version of a finished task, unless another mode still needs it."""
        if all(other.update != task.update for other in self._waiting):
            _unpin(run, task.update)

    def _retry(self, run: ActiveRun, error: EvaluatorDiedError) -> None:
        """Sends a failed version to a new process; drops it after its second failure."""
        self.close()
        self._idle_polls = 0
        task, self._playing = self._playing, None
        if task is None:
            return
        run.log(f"evaluation of update {task.update} failed: {error}")
        task.failures += 1
        if task.failures < _MOST_FAILURES:
            self._waiting.appendleft(task)
        else:
            run.log(f"update {task.update} is not evaluated; training continues")
            self._release(run, task)


@dataclasses.dataclass
class _Task:
    """A version to evaluate in one mode."""

    update: int
    mode: str
    stage: int | None
    failures: int = 0

    def to_json(self, run: ActiveRun) -> dict[str, Any]:
        """Returns the message to the evaluator."""
        config, path = run.config.eval, _store(run).directory / str(self.update)
        task = {"path": str(path), "mode": self.mode, "episodes": config.episodes, "max_rows": config.max_rows}
        return {**task, "seed": run.config.seed, "stage": self.stage, "agents": config.agents}


def evaluation_source(config: RunConfig, source: EnvSource, env: Any) -> EnvSource:
    """Returns the environments of evaluation; with a curriculum, at its last stage.

    Args:
        config: of the run.
        source: of training.
        env: its configuration, if it has one.

    Raises:
        UserError: `eval.env_kwargs` is no JSON object, or the environment has no configuration.
    """
    text = config.eval.env_kwargs
    try:
        changes = {} | json.loads(text)
    except (ValueError, TypeError) as error:
        raise UserError(f"eval.env_kwargs must be a JSON object: got {text!r} ({error})") from error
    if changes and not isinstance(env, EnvConfig):
        raise UserError(
            "eval.env_kwargs changes the arguments of an EnvConfig: the environment of this run is a function"
        )
    if changes:
        source = make_env(dataclasses.replace(env, kwargs=json.dumps({**json.loads(env.kwargs), **changes})))
    curriculum = config.curriculum
    return at_stage(source, curriculum.last_stage(source.spec().stage)) if curriculum.is_on else source


def _pinned_versions(directory: Path) -> list[int]:
    """Returns the versions of a run directory that wait for their evaluation, oldest first."""
    tags = ModelStore(directory / MODELS).tags()
    return sorted(version for tag, version in tags.items() if tag.startswith(PENDING))


def _store(run: ActiveRun) -> ModelStore:
    return ModelStore(run.directory / MODELS)


def _unpin(run: ActiveRun, version: int) -> None:
    store = _store(run)

    def write() -> None:
        with contextlib.suppress(UserError):  # a user removed the tag
            store.untag(f"{PENDING}{version}")
        store.collect_garbage(run.config.checkpoint.models_to_keep)

    run.try_write(f"the removal of tag {PENDING}{version}", write)
