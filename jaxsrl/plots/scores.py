"""Scores of runs, normalized to compare environments."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.run_directory import read_json
from jaxsrl.plots.grouping import Group
from jaxsrl.plots.run_curve import RunCurve
from jaxsrl.runs.summary import checkpoint_steps

Score = Literal["last", "best", "evaluation"]
Bounds = Mapping[str, tuple[float, float]]
"""Values that normalize to 0 and 1, by environment id."""


def run_score(curve: RunCurve, score: Score) -> float:
    """Returns the score of a run.

    Args:
        curve: curve of the run.
        score: "last" or "best" of the curve, or the mean return of its evaluation (`eval.json`).

    Raises:
        UserError: If the score is "evaluation", and the run has none, or that of an earlier update.
    """
    if score == "last":
        return float(curve.y[-1])
    if score == "best":
        return float(curve.y.max())
    evaluation = read_json(curve.path / "eval.json")
    if not isinstance(evaluation, dict) or not isinstance(evaluation.get("mean_return"), int | float):
        raise UserError(f"{curve.path / 'eval.json'} has no mean_return: run `jaxsrl evaluate {curve.path}` again")
    update, newest = evaluation.get("update", -1), max(checkpoint_steps(curve.path), default=-1)
    if update < newest:
        evaluated = "unknown" if update < 0 else update
        raise UserError(
            f"{curve.path / 'eval.json'} is of update {evaluated}: expected that of the newest checkpoint, {newest}; run "
            f"`jaxsrl evaluate {curve.path}`"
        )
    return float(evaluation["mean_return"])


def scores_by_method(
    groups: Sequence[Group], score: Score, bounds: Bounds | None
) -> tuple[dict[str, list[np.ndarray]], list[str]]:
    """Returns normalized scores of every method with runs in every environment: one array of runs per environment.

    Args:
        groups: groups of several environments.
        score: score of each run.
        bounds: Bounds from `read_bounds`; None takes the smallest and largest score of any run in an environment.

    Returns:
        Scores by label, environments sorted by id; and one line for each skipped method.

    Raises:
        UserError: `bounds` lack an environment, or both bounds of one are equal.
    """
    scores = {
        (group.label, group.env_id): np.array([run_score(curve, score) for curve in group.curves]) for group in groups
    }
    env_ids = sorted({group.env_id for group in groups})
    if bounds is None:
        bounds = {
            env_id: _range([values for (_, env), values in scores.items() if env == env_id]) for env_id in env_ids
        }
    missing = [env_id for env_id in env_ids if env_id not in bounds]
    if missing:
        raise UserError(
            f'--normalize has no bounds for {", ".join(missing)}: expected {{"{missing[0]}": [low, high]}} in it'
        )
    methods: dict[str, list[np.ndarray]] = {}
    skipped: list[str] = []
    for label in dict.fromkeys(group.label for group in groups):
        absent = [env_id for env_id in env_ids if (label, env_id) not in scores]
        if absent:
            skipped.append(f"{label} is in no aggregate: it has no run in {', '.join(absent)}")
            continue
        methods[label] = [_normalize(scores[label, env_id], *bounds[env_id]) for env_id in env_ids]
    if not methods:
        skipped = [f"no aggregate over environments: no group has runs in all of {', '.join(env_ids)}"]
    return methods, skipped


def read_bounds(path: Path) -> Bounds:
    """Reads bounds from a JSON file: {"CartPole-v1": [low, high], ...}.

    Raises:
        UserError: If it cannot be read or has another form.
    """
    bounds = read_json(path)
    if not isinstance(bounds, dict) or not all(_is_pair(pair) for pair in bounds.values()):
        raise UserError(
            f'{path}: expected {{"environment id": [value that becomes 0, value that becomes 1], ...}}, got {_short(bounds)}'
        )
    for env_id, (low, high) in bounds.items():
        if low == high:
            raise UserError(f"{path}: the bounds of {env_id} are both {low}: expected two different values")
    return {env_id: (float(low), float(high)) for env_id, (low, high) in bounds.items()}


def _is_pair(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(isinstance(value, int | float) for value in pair)


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _range(scores: list[np.ndarray]) -> tuple[float, float]:
    every = np.concatenate(scores)
    return float(every.min()), float(every.max())


def _normalize(scores: np.ndarray, low: float, high: float) -> np.ndarray:
    # If all runs of an environment score the same, each is as good as the best.
    return np.ones_like(scores) if low == high else (scores - low) / (high - low)
