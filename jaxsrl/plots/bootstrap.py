"""Means over repetitions with intervals: percentiles of the bootstrap (Efron 1979), or Student's (1908)."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from scipy import special

CONFIDENCE = 0.95
_RESAMPLES = 5000
_POINTS = 300


@dataclasses.dataclass(frozen=True, eq=False)
class MeanCurve:
    """Mean of several curves.

    Attributes:
        x: [P] float64.
        mean: [P] float64, over the curves.
        low: [P] float64, lower end of the interval of the mean; the mean itself for a single curve.
        high: [P] float64, upper end.
    """

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


Interval = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Function of values [N, P] over repetitions that returns the ends (low [P], high [P]) of the interval of their mean."""


def mean_curve(
    curves: Sequence[tuple[np.ndarray, np.ndarray]], points: int = _POINTS, interval: Interval | None = None
) -> MeanCurve:
    """Returns the mean over curves on their common range: from the latest start to the earliest end.

    Beyond it, the mean would be over different runs at different x.

    Args:
        curves: (x [N], y [N]) each, x increasing; linear between points.
        points: P. An empty range gives empty arrays.
        interval: `bootstrap_mean` if None.
    """
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if first > last:
        empty = np.zeros(0)
        return MeanCurve(empty, empty, empty, empty)
    grid = np.linspace(first, last, points)
    values = np.stack([np.interp(grid, x, y) for x, y in curves])
    low, high = (interval or bootstrap_mean)(values)
    return MeanCurve(grid, values.mean(0), low, high)


def bootstrap_mean(values: np.ndarray, confidence: float = CONFIDENCE) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ends of the percentile interval of the mean over the first axis; deterministic.

    Args:
        values: [N, P] float64; whole repetitions are resampled, with all their points.
        confidence: fraction of resamples inside the interval.

    Returns:
        (low [P], high [P]).
    """
    draws = np.random.default_rng(0).integers(len(values), size=(_RESAMPLES, len(values)))
    # Counts of each repetition, to avoid an array of [resamples, N, P].
    counts = np.stack([(draws == number).sum(1) for number in range(len(values))], 1)
    means = counts @ values / len(values)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return low, high


def student_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ends of Student's t interval of the mean over the first axis; the mean itself for one repetition.

    For three to five repetitions it covers the mean of normal values as often as it states. The bootstrap covers it less often.

    Args:
        values: [N, ...] float64.

    Returns:
        (low [...], high [...]).
    """
    mean, count = values.mean(0), len(values)
    if count == 1:
        return mean, mean
    quantile = float(special.stdtrit(count - 1, (1 + CONFIDENCE) / 2))
    half = quantile * values.std(0, ddof=1) / np.sqrt(count)
    return mean - half, mean + half
