"""Rules that end a run early: a budget of gradient steps or of time, a target return, returns that no longer improve."""

import dataclasses

from agents.api import AnyAgent, ReplayAgent
from envpool_bridge.errors import UserError
from jaxsrl.config.run_config import RunConfig
from jaxsrl.metrics.episodes import WINDOW
from jaxsrl.metrics.evaluations import Evaluation, read_evaluations
from jaxsrl.models.store import MODELS, RETURN, ModelStore
from jaxsrl.replay.schedule import updates_until
from jaxsrl.terminal.format import format_number
from jaxsrl.training.active_run import ActiveRun
from jaxsrl.training.callbacks import Callback


def with_gradient_budget(config: RunConfig, agent: AnyAgent) -> RunConfig:
    """Returns the configuration with no more env steps than its budget of gradient steps takes.

    Raises:
        UserError: If there is such a budget, but the agent does not learn from replay, or a resumed run would take fewer steps.
    """
    if config.gradient_steps is None or config.is_offline:
        return config
    if not isinstance(agent, ReplayAgent):
        raise UserError(
            f"run.gradient_steps is a budget for one policy that learns from replay, which agent {agent.name} is not: use "
            "--run.total-env-steps instead"
        )
    if not config.checkpoint.include_replay:
        raise UserError(
            "run.gradient_steps is counted from the env steps of the whole run, but with checkpoint.include_replay off, a resumed "
            "run collects experience again before it learns: use --checkpoint.include-replay or --run.total-env-steps instead"
        )
    updates = updates_until(agent.data.config, config.env_steps_per_update, config.gradient_steps)
    if updates > config.num_updates:
        return dataclasses.replace(config, gradient_steps=None)
    return dataclasses.replace(config, total_env_steps=updates * config.env_steps_per_update)


def stop_rules(config: RunConfig) -> list[Callback]:
    """Returns a callback for each stop rule of the configuration, which `with_gradient_budget` returned."""
    rules: list[Callback] = []
    if config.gradient_steps is not None and not config.is_offline:
        rules.append(GradientBudget(config.gradient_steps))
    if config.max_hours:
        rules.append(TimeLimit(config.max_hours))
    if config.target_return is not None:
        rules.append(TargetReturn(config.target_return))
    if config.plateau_env_steps:
        rules.append(Plateau(config.plateau_env_steps))
    return rules


class GradientBudget(Callback):
    """Says of a run whose env steps `with_gradient_budget` has limited why it ends.

    Args:
        gradient_steps: budget.
    """

    def __init__(self, gradient_steps: int) -> None:
        self._gradient_steps = gradient_steps

    def on_update(self, run: ActiveRun) -> None:
        if run.num_updates >= run.config.num_updates:
            run.stop(f"{self._gradient_steps:,} gradient steps are done (--run.gradient-steps)")


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
    """Ends a run at a mean return: of an evaluation if the run evaluates while it trains, otherwise of the last 100 episodes.

    Evaluations count in the mode that chooses the best model. With a curriculum, only evaluations of the last stage count.

    Args:
        target: mean return, in environment reward units.
    """

    def __init__(self, target: float) -> None:
        self._target = target

    def on_start(self, run: ActiveRun) -> None:
        for evaluation in read_evaluations(run.directory):
            self.on_evaluation(run, evaluation)
        self.on_update(run)  # a run that has reached the target trains no further when its command is repeated

    def on_evaluation(self, run: ActiveRun, evaluation: Evaluation) -> None:
        last = run.config.curriculum.last_stage(run.spec.stage)
        if run.config.curriculum.is_on and evaluation.stage != last:
            return
        if evaluation.mode == run.config.eval.modes[0] and evaluation.mean_return >= self._target:
            self._stop(
                run, f"evaluation return {format_number(evaluation.mean_return)} at {evaluation.env_steps:,} env steps"
            )

    def on_update(self, run: ActiveRun) -> None:
        if run.config.eval.every:
            return
        episodes = run.episodes()
        if episodes.get("episode/count", 0.0) >= WINDOW and episodes["episode/return_mean"] >= self._target:
            self._stop(
                run, f"training return {format_number(episodes['episode/return_mean'])} of the last {WINDOW} episodes"
            )

    def _stop(self, run: ActiveRun, what: str) -> None:
        run.stop(f"{what} reaches the target {self._target:g} (--run.target-return)")


class Plateau(Callback):
    """Ends a run whose evaluation return no longer improves. Evaluations count in the mode that chooses the best model.

    Args:
        env_steps: since the best evaluation, at which the run ends.
    """

    def __init__(self, env_steps: int) -> None:
        self._env_steps = env_steps
        self._evaluations: list[Evaluation] = []

    def on_start(self, run: ActiveRun) -> None:
        # The others were worse than the best one, or a roll-back has abandoned them.
        known = ModelStore(run.directory / MODELS).noted(RETURN)
        for evaluation in read_evaluations(run.directory):
            if evaluation.update in known:
                self.on_evaluation(run, evaluation)

    def on_roll_back(self, run: ActiveRun, update: int) -> None:
        self._evaluations = [each for each in self._evaluations if each.update <= update]

    def on_evaluation(self, run: ActiveRun, evaluation: Evaluation) -> None:
        if evaluation.mode != run.config.eval.modes[0]:
            return
        self._evaluations.append(evaluation)
        best = max(self._evaluations, key=lambda each: each.rank)
        if evaluation.env_steps - best.env_steps >= self._env_steps:
            shown = f"{format_number(best.mean_return)} at {best.env_steps:,} env steps"
            run.stop(f"the evaluation return has not exceeded {shown} since (--run.plateau-env-steps)")
