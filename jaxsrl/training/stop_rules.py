"""Rules that end a run early: a time limit, a target return, and returns that no longer improve."""

from jaxsrl.config.run_config import RunConfig
from jaxsrl.metrics.episodes import WINDOW
from jaxsrl.metrics.evaluations import Evaluation, read_evaluations
from jaxsrl.training.active_run import ActiveRun
from jaxsrl.training.callbacks import Callback


def stop_rules(config: RunConfig) -> list[Callback]:
    """Returns a callback for each stop rule of the configuration."""
    rules: list[Callback] = []
    if config.max_hours:
        rules.append(TimeLimit(config.max_hours))
    if config.target_return is not None:
        rules.append(TargetReturn(config.target_return))
    if config.plateau_env_steps:
        rules.append(Plateau(config.plateau_env_steps))
    return rules


class TimeLimit(Callback):
    """Ends a run after some hours of this process.

    Args:
        hours: limit.
    """

    def __init__(self, hours: float) -> None:
        self._hours = hours

    def on_update(self, run: ActiveRun) -> None:
        if run.seconds >= self._hours * 3600.0:
            run.stop(f"{self._hours:g} hours are over (--run.max-hours)")


class TargetReturn(Callback):
    """Ends a run at a mean return: of a greedy evaluation if the run evaluates while it trains, otherwise of the last 100 episodes.

    With a curriculum, only evaluations of the last stage count.

    Args:
        target: mean return, in environment reward units.
    """

    def __init__(self, target: float) -> None:
        self._target = target

    def on_start(self, run: ActiveRun) -> None:
        for evaluation in read_evaluations(run.directory):
            self.on_evaluation(run, evaluation)

    def on_evaluation(self, run: ActiveRun, evaluation: Evaluation) -> None:
        last = run.config.curriculum.last_stage(run.spec.stage)
        if run.config.curriculum.is_on and evaluation.stage != last:
            return
        if evaluation.mode == "greedy" and evaluation.mean_return >= self._target:
            self._stop(run, f"evaluated return {evaluation.mean_return:.4g} of {evaluation.env_steps:,} env steps")

    def on_update(self, run: ActiveRun) -> None:
        if run.config.eval.every:
            return
        episodes = run.episodes()
        if episodes.get("episode/count", 0.0) >= WINDOW and episodes["episode/return_mean"] >= self._target:
            self._stop(run, f"mean return {episodes['episode/return_mean']:.4g} of the last {WINDOW} episodes")

    def _stop(self, run: ActiveRun, what: str) -> None:
        run.stop(f"{what} reaches the target {self._target:g} (--run.target-return)")


class Plateau(Callback):
    """Ends a run whose evaluated greedy return no longer improves.

    Args:
        env_steps: since the best evaluation, at which the run ends.
    """

    def __init__(self, env_steps: int) -> None:
        self._env_steps = env_steps
        self._best: Evaluation | None = None

    def on_start(self, run: ActiveRun) -> None:
        for evaluation in read_evaluations(run.directory):
            self.on_evaluation(run, evaluation)

    def on_evaluation(self, run: ActiveRun, evaluation: Evaluation) -> None:
        if evaluation.mode != "greedy":
            return
        if self._best is None or evaluation.rank > self._best.rank:
            self._best = evaluation
        elif evaluation.env_steps - self._best.env_steps >= self._env_steps:
            best = f"{self._best.mean_return:.4g} at {self._best.env_steps:,} env steps"
            run.stop(f"the evaluated return has not exceeded {best} since (--run.plateau-env-steps)")
