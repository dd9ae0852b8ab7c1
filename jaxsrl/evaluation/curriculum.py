"""The stage of a run at each of its updates, as its evaluations decide."""

from collections.abc import Sequence

from jaxsrl.config.curriculum import CurriculumConfig
from jaxsrl.metrics.evaluations import Evaluation


def stage_at(config: CurriculumConfig, first: int, evaluations: Sequence[Evaluation], update: int) -> int:
    """Returns the stage that a run's environments receive after an update.

    The stage is a function of the evaluations of earlier versions alone, so that a resumed run repeats every change.

    Args:
        config: conditions that end the stages.
        first: the first stage.
        evaluations: Evaluations of one mode; of the run, in any order.
        update: Update count; only evaluations of versions before it count.
    """
    stage = first
    seen: list[Evaluation] = []  # of the stage; the first one of a later stage is of the version with which that began
    for each in sorted(evaluations, key=lambda each: each.update):
        place = stage - first
        if each.update >= update or place >= len(config.returns):
            break
        seen.append(each)
        began = seen[0].env_steps if place else 0
        if _ends(config, config.returns[place], [one.mean_return for one in seen], each.env_steps - began):
            stage, seen = stage + 1, []
    return stage


def _ends(config: CurriculumConfig, target: float, returns: Sequence[float], env_steps: int) -> bool:
    """Returns whether a stage ends with the last of its evaluations, whose mean returns are `returns`, after `env_steps`."""
    last = returns[-config.evaluations :]
    if len(last) == config.evaluations:
        reached = min(last) >= target
        converged = config.spread > 0 and max(last) - min(last) <= config.spread
        if reached or converged:
            return True
    return 0 < config.max_env_steps <= env_steps
