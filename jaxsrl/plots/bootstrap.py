"""Means over repetitions, and how far to trust them: percentile intervals of the bootstrap (Efron 1979)."""

import dataclasses
from collections.abc import Sequence

import numpy as np

CONFIDENCE = 0.95
_RESAMPLES = 5000
_POINTS = 300


@dataclasses.dataclass(frozen=True, eq=False)
class MeanCurve:
    """Of several curves.

    Attributes:
        x: [P] float64.
        mean: [P] float64, over the curves.
        low: [P] float64, lower end of the interval of the mean; the mean itself where there is one curve.
        high: [P] float64, upper end.
    """

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def mean_curve(curves: Sequence[tuple[np.ndarray, np.ndarray]], points: int = _POINTS) -> MeanCurve:
    """The mean over curves where all of them are known: from the latest beginning to the earliest end.

    A mean over those that got furthest would be of other runs at its end than at its beginning.

    Args:
        curves: (x [N], y [N]) each, x increasing; between its points a curve is a straight line.
        points: P, if the curves have something in common; else 0 are returned.
    """
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if first > last:
        empty = np.zeros(0)
        return MeanCurve(empty, empty, empty, empty)
    grid = np.linspace(first, last, points)
    values = np.stack([np.interp(grid, x, y) for x, y in curves])
    low, high = bootstrap_mean(values)
    return MeanCurve(grid, values.mean(0), low, high)


def bootstrap_mean(
    values: np.ndarray, confidence: float = CONFIDENCE, resamples: int = _RESAMPLES
) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the percentile interval of the mean over the first axis; the same for the same values.

    Args:
        values: [N, P] float64; whole repetitions are drawn, with all their points.
        confidence: share of resamples inside.
        resamples: how many.

    Returns:
        (low [P], high [P]).
    """
    draws = np.random.default_rng(0).integers(len(values), size=(resamples, len(values)))
    # How often each repetition was drawn, so that no array of [resamples, N, P] is made.
    counts = np.stack([(draws == number).sum(1) for number in range(len(values))], 1)
    means = counts @ values / len(values)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return low, high
