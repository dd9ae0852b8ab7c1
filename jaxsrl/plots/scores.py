"""One number for each run, and numbers of different environments made comparable."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from envpool_bridge.errors import UserError
from jaxsrl.plots.grouping import Group
from jaxsrl.plots.run_curve import RunCurve
from jaxsrl.run_directory import read_json

Score = Literal["last", "best", "evaluation"]
Bounds = Mapping[str, tuple[float, float]]
"""For each environment id the values that become 0 and 1."""


def run_score(curve: RunCurve, score: Score) -> float:
    """What a run came to.

    Args:
        curve: of the run.
        score: "last" and "best" of the curve, or the mean return of its evaluation (`eval.json`).

    Raises:
        UserError: an evaluation is asked for, and the run has none.
    """
    if score == "last":
        return float(curve.y[-1])
    if score == "best":
        return float(curve.y.max())
    found = read_json(curve.path / "eval.json")
    if not isinstance(found, dict) or not isinstance(found.get("mean_return"), int | float):
        raise UserError(f"{curve.path / 'eval.json'} has no mean_return: run `jaxsrl evaluate {curve.path}` again")
    return float(found["mean_return"])


def scores_by_method(
    groups: Sequence[Group], score: Score, bounds: Bounds | None
) -> tuple[dict[str, list[np.ndarray]], list[str]]:
    """Normalised scores of every method that has runs in every environment: one array of runs for each environment.

    Args:
        groups: of several environments.
        score: of each run.
        bounds: from `read_bounds`; None takes the smallest and largest score that any run has in an environment.

    Returns:
        Scores by label, environments sorted by id; and a line for each method that was left out.

    Raises:
        UserError: `bounds` lack an environment, or those of one are the same.
    """
    found = {
        (group.label, group.env_id): np.array([run_score(curve, score) for curve in group.curves]) for group in groups
    }
    env_ids = sorted({group.env_id for group in groups})
    if bounds is None:
        bounds = {env_id: _range([scores for (_, env), scores in found.items() if env == env_id]) for env_id in env_ids}
    missing = [env_id for env_id in env_ids if env_id not in bounds]
    if missing:
        raise UserError(
            f'--normalise has no bounds for {", ".join(missing)}: expected {{"{missing[0]}": [low, high]}} in it'
        )
    methods: dict[str, list[np.ndarray]] = {}
    left_out: list[str] = []
    for label in dict.fromkeys(group.label for group in groups):
        absent = [env_id for env_id in env_ids if (label, env_id) not in found]
        if absent:
            left_out.append(f"{label} is in no aggregate: it has no run in {', '.join(absent)}")
            continue
        methods[label] = [_normalised(found[label, env_id], *bounds[env_id]) for env_id in env_ids]
    if not methods:
        left_out = [f"no aggregate over environments: no group has runs in all of {', '.join(env_ids)}"]
    return methods, left_out


def read_bounds(path: Path) -> Bounds:
    """Bounds from a JSON file: {"CartPole-v1": [low, high], ...}.

    Raises:
        UserError: it cannot be read, or is something else.
    """
    found = read_json(path)
    if not isinstance(found, dict) or not all(_is_pair(pair) for pair in found.values()):
        raise UserError(
            f'{path}: expected {{"environment id": [value that becomes 0, value that becomes 1], ...}}, got {_short(found)}'
        )
    for env_id, (low, high) in found.items():
        if low == high:
            raise UserError(f"{path}: the bounds of {env_id} are both {low}: expected two different values")
    return {env_id: (float(low), float(high)) for env_id, (low, high) in found.items()}


def _is_pair(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(isinstance(value, int | float) for value in pair)


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _range(scores: list[np.ndarray]) -> tuple[float, float]:
    every = np.concatenate(scores)
    return float(every.min()), float(every.max())


def _normalised(scores: np.ndarray, low: float, high: float) -> np.ndarray:
    # All runs of an environment the same: none of them is better, all are as good as the best.
    return np.ones_like(scores) if low == high else (scores - low) / (high - low)
