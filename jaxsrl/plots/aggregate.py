"""Scores of one method over several environments, after Agarwal et al. 2021, "Deep RL at the Edge of the Statistical Precipice".

Scores are given as one array of runs for each environment, so that environments may have different numbers of runs. Intervals are
percentiles of the stratified bootstrap: runs are drawn anew within each environment, which are all kept.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

from jaxsrl.plots.mean_interval import CONFIDENCE

Scores = Sequence[np.ndarray]
"""One float64 array [N_e] of normalised scores for each environment e."""
_RESAMPLES = 2000


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number and its interval of confidence.

    Attributes:
        value: of the scores as they are.
        low: lower end.
        high: upper end.
    """

    value: float
    low: float
    high: float


def iqm(scores: Scores) -> float:
    """Interquartile mean: of the middle half of all runs of all environments."""
    return float(stats.trim_mean(np.concatenate(scores), 0.25))


def median_of_means(scores: Scores) -> float:
    """Median over environments of their mean scores."""
    return float(np.median([np.mean(of_env) for of_env in scores]))


def mean_of_means(scores: Scores) -> float:
    """Mean over environments of their mean scores."""
    return float(np.mean([np.mean(of_env) for of_env in scores]))


def optimality_gap(scores: Scores, wanted: float = 1.0) -> float:
    """By how much runs fall short of the score `wanted`, on average; what is above it does not make up for it."""
    return wanted - float(np.mean(np.minimum(np.concatenate(scores), wanted)))


def estimate(scores: Scores, statistic: Callable[[Scores], float], resamples: int = _RESAMPLES) -> Estimate:
    """A statistic of the scores with its 95 % interval; the same for the same scores."""
    rng = np.random.default_rng(0)
    return _estimate(statistic(scores), [statistic(resampled(scores, rng)) for _ in range(resamples)])


def resampled(scores: Scores, rng: np.random.Generator) -> list[np.ndarray]:
    """As many runs of each environment, drawn with replacement."""
    return [of_env[rng.integers(len(of_env), size=len(of_env))] for of_env in scores]


def probability_of_improvement(better: Scores, worse: Scores) -> float:
    """Probability that a run of one method scores more than one of the other, mean over environments; ties count half.

    Args:
        better: scores of the method that is asked about.
        worse: of the other, in the same environments.
    """
    return float(np.mean([_above(x, y) for x, y in zip(better, worse, strict=True)]))


def estimate_improvement(better: Scores, worse: Scores, resamples: int = _RESAMPLES) -> Estimate:
    """`probability_of_improvement` with its 95 % interval; runs of both methods are drawn anew."""
    rng = np.random.default_rng(0)
    drawn = [probability_of_improvement(resampled(better, rng), resampled(worse, rng)) for _ in range(resamples)]
    return _estimate(probability_of_improvement(better, worse), drawn)


def performance_profile(scores: Scores, thresholds: np.ndarray, resamples: int = _RESAMPLES) -> tuple[np.ndarray, ...]:
    """Share of runs that score more than each threshold, and the ends of its 95 % interval.

    Args:
        scores: of a method.
        thresholds: [P] float64.
        resamples: how many.

    Returns:
        (share [P], low [P], high [P]).
    """
    rng = np.random.default_rng(0)
    drawn = np.stack([_profile(resampled(scores, rng), thresholds) for _ in range(resamples)])
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return _profile(scores, thresholds), low, high


def _profile(scores: Scores, thresholds: np.ndarray) -> np.ndarray:
    ordered = np.sort(np.concatenate(scores))
    return 1.0 - np.searchsorted(ordered, thresholds, side="right") / len(ordered)


def _above(x: np.ndarray, y: np.ndarray) -> float:
    difference = x[:, None] - y[None, :]
    return float(np.mean(difference > 0) + np.mean(difference == 0) / 2)


def _estimate(value: float, drawn: list[float]) -> Estimate:
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(value, float(low), float(high))
