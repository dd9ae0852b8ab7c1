"""State of a run for live views, from its records: progress, time left, recent curve. Pure functions."""

import dataclasses
from collections.abc import Sequence

from jaxsrl.metrics.evaluations import Evaluation
from jaxsrl.metrics.sinks import Record
from jaxsrl.plan.plan import Plan

CURVE_POINTS = 60
"""Records of the recent curve."""

_SPEED_SECONDS = 60.0  # window of the speed estimate


@dataclasses.dataclass(frozen=True)
class RunInfo:
    """Facts of a run that are known before the first record.

    Attributes:
        title: name of the run.
        plan: plan whose fragments are shown.
        total_env_steps: env steps of the whole run.
        action_repeat: frames per env step.
        first_update: updates done at the start of this process.
        first_env_steps: env steps done at the start of this process.
    """

    title: str
    plan: Plan
    total_env_steps: int
    action_repeat: int
    first_update: int = 0
    first_env_steps: int = 0

    @property
    def step_unit(self) -> str:
        """Unit of the run's steps: a run without environments counts gradient steps."""
        return "gradient steps" if self.plan.is_offline else "env steps"


@dataclasses.dataclass(frozen=True)
class RunState:
    """Run as of its newest record. Immutable: `with_record` returns the next state.

    Attributes:
        facts: constants of the run.
        record: newest record; None before the first.
        curve: mean episode returns of the last records, oldest first.
        best_return: largest mean so far; None before the first episode.
        recent: (wall seconds, env steps) of the newest records of this process, oldest first.
        checkpoint_at: wall seconds of the first record with the newest checkpoint; None if this process has saved none.
        evaluation: newest evaluation in the mode of the first one, which is greedy if both are played; None before it.
        best_evaluation: Evaluation of the highest `rank`; None before the first.
        evaluation_curve: mean returns of the last evaluations, oldest first.
    """

    facts: RunInfo
    record: Record | None = None
    curve: tuple[float, ...] = ()
    best_return: float | None = None
    recent: tuple[tuple[float, int], ...] = ()
    checkpoint_at: float | None = None
    evaluation: Evaluation | None = None
    best_evaluation: Evaluation | None = None
    evaluation_curve: tuple[float, ...] = ()

    @property
    def values(self) -> dict[str, float]:
        """Values of the newest record; empty before the first."""
        return self.record.values if self.record is not None else {}

    @property
    def env_steps(self) -> int:
        """Env steps done so far."""
        return self.record.env_steps if self.record is not None else self.facts.first_env_steps

    @property
    def progress(self) -> float:
        """Fraction of the run that is done, 0 to 1."""
        return min(1.0, self.env_steps / max(1, self.facts.total_env_steps))


def initial_state(facts: RunInfo, returns: Sequence[float] = (), evaluations: Sequence[Evaluation] = ()) -> RunState:
    """Returns the state of a run before the first record of this process.

    Args:
        facts: constants of the run.
        returns: mean returns of the records of earlier processes, oldest first; the curve continues from them.
        evaluations: Evaluations of earlier processes.
    """
    state = RunState(facts)
    for evaluation in evaluations:
        state = with_evaluation(state, evaluation)
    for value in returns:
        state = _with_return(state, value)
    return state


def with_record(state: RunState, record: Record) -> RunState:
    """Returns the state after one more record."""
    resumed = state.record is not None and record.wall_seconds < state.record.wall_seconds
    recent = () if resumed else state.recent
    # The start of the process counts only until the second record: the first interval includes compilation.
    if state.record is None:
        recent = ((0.0, state.facts.first_env_steps),)
    elif len(recent) == 2 and recent[0][0] == 0.0:
        recent = recent[1:]
    recent = (*recent, (record.wall_seconds, record.env_steps))
    since = record.wall_seconds - _SPEED_SECONDS
    while len(recent) > 2 and recent[1][0] <= since:
        recent = recent[1:]
    checkpoint = record.values.get("checkpoint/update", 0.0)
    before = state.values.get("checkpoint/update", float(state.facts.first_update))
    at = record.wall_seconds if checkpoint != before else (None if resumed else state.checkpoint_at)
    state = dataclasses.replace(state, record=record, recent=recent, checkpoint_at=at)
    value = record.values.get("episode/return_mean")
    return state if value is None else _with_return(state, value)


def with_evaluation(state: RunState, evaluation: Evaluation) -> RunState:
    """Returns the state after one more evaluation; those of a second mode are not shown."""
    best = state.best_evaluation
    if best is not None and best.mode != evaluation.mode:
        return state
    if best is None or evaluation.rank > best.rank:
        best = evaluation
    curve = (*state.evaluation_curve, evaluation.mean_return)[-CURVE_POINTS:]
    return dataclasses.replace(state, evaluation=evaluation, best_evaluation=best, evaluation_curve=curve)


def _with_return(state: RunState, value: float) -> RunState:
    curve = (*state.curve, value)[-CURVE_POINTS:]
    best = value if state.best_return is None else max(state.best_return, value)
    return dataclasses.replace(state, curve=curve, best_return=best)


def seconds_left(state: RunState) -> float | None:
    """Returns the seconds until the run is complete at its recent speed; None if that is unknown or zero.

    Only progress of this process counts, so that the estimate holds right after a resume.
    """
    missing = state.facts.total_env_steps - state.env_steps
    if missing <= 0:
        return 0.0
    if len(state.recent) < 2:
        return None
    (start, first), (end, last) = state.recent[0], state.recent[-1]
    return missing * (end - start) / (last - first) if last > first else None
