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
from envpool_bridge.envs.fingerprint import read_modules
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.envs.stages import at_stage
from envpool_bridge.errors import UserError
from jaxsrl.config.parts import EvalConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.registry import make_env
from jaxsrl.evaluation.curriculum import stage_at
from jaxsrl.evaluation.evaluate import ALL_AGENTS, for_evaluation, validate_agents, validate_seeds
from jaxsrl.evaluation.evaluator import Evaluator, EvaluatorDiedError
from jaxsrl.evaluation.progress import ProgressLines
from jaxsrl.metrics.evaluations import Evaluation, read_evaluations
from jaxsrl.models.store import BEST, MODELS, PENDING, RETURN, ModelStore
from jaxsrl.training.active_run import ActiveRun
from jaxsrl.training.callbacks import Callback

OUTPUT = "evaluator.txt"
_POLL_SECONDS = 0.1
_MOST_FAILURES = 2
_MOST_POLL_SECONDS = 10.0  # longer than between two polls: the process was paused, or an update took long


class EvaluateWhileTraining(Callback):
    """Pins a version at the first update at or past each multiple of `--eval.every`, and has it evaluated.

    Every version is played with the same seed, so results depend on the version alone. A resumed run evaluates the versions that
    an earlier process pinned and did not finish. The evaluator never receives what training uses. Training waits for it at its end,
    and with a curriculum before the next version is pinned: a change of the stage must not depend on timing.

    Args:
        agent: Agent without replay around it.
        source: Source of the environments of the evaluation.
    """

    def __init__(self, agent: AnyAgent, source: EnvSource) -> None:
        self._agent, self._source = agent, source
        self._modules = read_modules(agent, source)
        self._evaluator: Evaluator | None = None
        self._waiting: deque[_Task] = deque()
        self._done: dict[tuple[int, str], Evaluation] = {}
        self._best: Evaluation | None = None
        self._playing: _Task | None = None
        self._polled = self._advanced = 0.0
        self._silent_seconds = 0.0  # since the evaluator last reported a step
        self._is_finishing = False

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
            self._is_finishing = True
            self._finish(run)
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
            UserError: If the environments of the plan cannot be sent another stage.
        """
        if not run.config.curriculum.is_on:
            return
        self._finish(run)
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

    def _finish(self, run: ActiveRun) -> None:
        """Waits for all evaluations, or for a signal."""
        lines = ProgressLines(run.config.eval.episodes, run.log)
        while (self._waiting or self._playing) and not run.is_interrupted:
            self._advance(run)
            if self._evaluator is not None:
                lines(self._evaluator.finished)
            if self._waiting or self._playing:
                run.wait(_POLL_SECONDS)

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
                steps = self._evaluator.steps
                answer = self._evaluator.poll()
                if answer is None:
                    self._check_deadline(run, has_stepped=self._evaluator.steps != steps)
                    return
                task, self._playing = self._playing, None
                self._record(run, task, answer)
            if self._playing is None and self._waiting:
                if self._evaluator is None:
                    self._evaluator = Evaluator(self._agent, self._source, run.directory / OUTPUT, self._modules)
                self._playing, self._silent_seconds = self._waiting.popleft(), 0.0
                self._advanced = time.monotonic()
                self._evaluator.send(self._playing.to_json(run))
        except EvaluatorDiedError as error:
            self._retry(run, error)

    def _check_deadline(self, run: ActiveRun, has_stepped: bool) -> None:
        """Adds the time since the last poll to that without a step. The clock also runs while the process is paused.

        Raises:
            EvaluatorDiedError: If the evaluator has made no step for too long.
        """
        now = time.monotonic()
        most = min(_MOST_POLL_SECONDS, run.config.stall_timeout_seconds / 4)
        passed, self._advanced = min(now - self._advanced, most), now
        self._silent_seconds = 0.0 if has_stepped else self._silent_seconds + passed
        if self._silent_seconds > run.config.stall_timeout_seconds:
            limit = f"--run.stall-timeout-seconds {run.config.stall_timeout_seconds:g}"
            raise EvaluatorDiedError(
                f"the evaluator made no step for {self._silent_seconds:.0f} s ({limit}), and was killed"
            )

    def _record(self, run: ActiveRun, task: "_Task", answer: dict[str, Any]) -> None:
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
        """Sends a failed version to a new process; drops it after its second failure, at the end of the run with all that wait."""
        self.close()
        task, self._playing = self._playing, None
        if task is None:
            return
        run.log(f"evaluation of update {task.update} failed: {error}")
        task.failures += 1
        if task.failures < _MOST_FAILURES:
            self._waiting.appendleft(task)
            return
        dropped = [task]
        if self._is_finishing:
            dropped += self._waiting
            self._waiting.clear()
        for each in dropped:
            run.log(f"update {each.update} is not evaluated; the run continues without it")
            self._release(run, each)


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
        task = {"path": str(path), "mode": self.mode, "episodes": config.episodes}
        task |= {"max_rows": rows_of_evaluation(run.config), "max_episode_steps": config.max_episode_steps}
        seeds = {"seed": run.config.seed, "seeds": named_seeds(config)}
        return {**task, **seeds, "stage": self.stage, "agents": config.agents}


def evaluation_source(config: RunConfig, source: EnvSource, env: Any) -> EnvSource:
    """Returns the environments of evaluation; with a curriculum, at its last stage.

    Args:
        config: Configuration of the run.
        source: Source of training.
        env: Configuration of the environment, if it has one.

    Raises:
        UserError: If there are `eval.env_kwargs`, and the environment has no configuration.
    """
    changes = json.loads(config.eval.env_kwargs)
    if changes and not isinstance(env, EnvConfig):
        raise UserError(
            "eval.env_kwargs changes the arguments of an EnvConfig: the environment of this run is a function"
        )
    if changes:
        source = make_env(dataclasses.replace(env, kwargs={**env.arguments(), **changes}))
    curriculum, stage = config.curriculum, config.eval.stage
    if stage is not None and (curriculum.is_on or source.spec().stage is None):
        needed = (
            "a curriculum chooses it"
            if curriculum.is_on
            else "the environments receive none: use --env.stage 0 with it"
        )
        raise UserError(f"eval.stage {stage} is the stage of evaluations, but {needed}")
    return at_stage(source, curriculum.last_stage(source.spec().stage) if curriculum.is_on else stage)


def validate_evaluation(config: RunConfig, source: EnvSource) -> None:
    """Rejects seeds, levels and agents of evaluations that the environments do not have.

    Raises:
        UserError: says what does not fit, and what to change.
    """
    choice = config.eval
    if choice.agents != ALL_AGENTS:
        validate_agents(source.spec(), choice.agents)
    if not named_seeds(choice):
        return
    spec = source.spec()
    if choice.levels and spec.stage is not None:
        raise UserError(
            f"eval.levels {choice.levels}: the levels of {spec.env_id} are its stages: use --eval.stage, one of them"
        )
    for played in (choice.episodes if choice.every else 0, choice.final_episodes):
        validate_seeds(for_evaluation(source), spec, named_seeds(choice), played)


def named_seeds(choice: EvalConfig) -> tuple[int, ...]:
    """Returns the seeds of the episodes of evaluations; () if none are named."""
    return tuple(choice.seeds or range(choice.levels))


def rows_of_evaluation(config: RunConfig) -> int:
    """Returns the largest number of rows that an evaluation of a run opens."""
    return min(config.num_envs, config.eval.max_rows)


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
