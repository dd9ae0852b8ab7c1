"""Scores of one method over several environments, after Agarwal et al. 2021, "Deep RL at the Edge of the Statistical Precipice".

Scores are given as one array of runs for each environment, so that environments may have different numbers of runs. Intervals are
percentiles of the stratified bootstrap: runs are drawn anew within each environment, which are all kept. Statistics work along the
last axis, so that all resamples are computed at once.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

from jaxsrl.plots.bootstrap import CONFIDENCE

Scores = Sequence[np.ndarray]
"""One float64 array [N_e] of normalised scores for each environment e; [R, N_e] for R resamples of them."""
_RESAMPLES = 2000
_ENDS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)


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


def iqm(scores: Scores) -> np.ndarray:
    """Interquartile mean: of the middle half of all runs of all environments; [] or [R] float64."""
    return stats.trim_mean(_pooled(scores), 0.25, axis=-1)


def median_of_means(scores: Scores) -> np.ndarray:
    """Median over environments of their mean scores; [] or [R] float64."""
    return np.median([of_env.mean(-1) for of_env in scores], axis=0)


def mean_of_means(scores: Scores) -> np.ndarray:
    """Mean over environments of their mean scores; [] or [R] float64."""
    return np.mean([of_env.mean(-1) for of_env in scores], axis=0)


def optimality_gap(scores: Scores, wanted: float = 1.0) -> np.ndarray:
    """By how much runs fall short of the score `wanted`, on average; more than it does not make up for less; [] or [R] float64."""
    return wanted - np.minimum(_pooled(scores), wanted).mean(-1)


def estimate(scores: Scores, statistic: Callable[[Scores], np.ndarray], resamples: int = _RESAMPLES) -> Estimate:
    """A statistic of the scores with its 95 % interval; the same for the same scores."""
    drawn = statistic(resample(scores, np.random.default_rng(0), resamples))
    return _estimate(statistic(scores), drawn)


def resample(scores: Scores, rng: np.random.Generator, resamples: int) -> list[np.ndarray]:
    """As many runs of each environment, drawn with replacement: [R, N_e] each."""
    return [of_env[rng.integers(len(of_env), size=(resamples, len(of_env)))] for of_env in scores]


def probability_of_improvement(better: Scores, worse: Scores) -> np.ndarray:
    """Probability that a run of one method scores more than one of the other, mean over environments; ties count half.

    Args:
        better: scores of the method that is asked about.
        worse: of the other, in the same environments.

    Returns:
        [] or [R] float64.
    """
    return np.mean([_above(x, y) for x, y in zip(better, worse, strict=True)], axis=0)


def estimate_improvement(better: Scores, worse: Scores, resamples: int = _RESAMPLES) -> Estimate:
    """`probability_of_improvement` with its 95 % interval; runs of both methods are drawn anew."""
    rng = np.random.default_rng(0)
    drawn = probability_of_improvement(resample(better, rng, resamples), resample(worse, rng, resamples))
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
    drawn = _profile(resample(scores, np.random.default_rng(0), resamples), thresholds)
    low, high = np.quantile(drawn, _ENDS, axis=1)
    return _profile(scores, thresholds), low, high


def _pooled(scores: Scores) -> np.ndarray:
    return np.concatenate(scores, axis=-1)


def _profile(scores: Scores, thresholds: np.ndarray) -> np.ndarray:
    pooled = _pooled(scores)
    return np.stack([(pooled > threshold).mean(-1) for threshold in thresholds])


def _above(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    difference = x[..., :, None] - y[..., None, :]
    return (difference > 0).mean((-2, -1)) + (difference == 0).mean((-2, -1)) / 2


def _estimate(value: np.ndarray, drawn: np.ndarray) -> Estimate:
    low, high = np.quantile(drawn, _ENDS)
    return Estimate(float(value), float(low), float(high))
