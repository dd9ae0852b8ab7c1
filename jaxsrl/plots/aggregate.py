"""Aggregate scores of one method over environments (Agarwal et al. 2021, "Deep RL at the Edge of the Statistical Precipice").

Scores are one array of runs per environment, because environments may have different numbers of runs. Intervals are
percentiles of the stratified bootstrap: runs are resampled within each environment. Statistics reduce the last axis, so that all
resamples are computed at once.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

from jaxsrl.plots.bootstrap import CONFIDENCE

Scores = Sequence[np.ndarray]
"""One float64 array [N_e] of normalized scores for each environment e; [R, N_e] for R resamples."""
_RESAMPLES = 2000
_ENDS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Number with its confidence interval."""

    value: float
    low: float
    high: float


def iqm(scores: Scores) -> np.ndarray:
    """Returns the interquartile mean, the mean of the middle half of all runs of all environments; [] or [R] float64."""
    return stats.trim_mean(_pool(scores), 0.25, axis=-1)


def median_of_means(scores: Scores) -> np.ndarray:
    """Returns the median over environments of their mean scores; [] or [R] float64."""
    return np.median([env_scores.mean(-1) for env_scores in scores], axis=0)


def mean_of_means(scores: Scores) -> np.ndarray:
    """Returns the mean over environments of their mean scores; [] or [R] float64."""
    return np.mean([env_scores.mean(-1) for env_scores in scores], axis=0)


def optimality_gap(scores: Scores) -> np.ndarray:
    """Returns the mean shortfall of runs below the score 1, which others above do not compensate; [] or [R] float64."""
    return 1.0 - np.minimum(_pool(scores), 1.0).mean(-1)


def estimate(scores: Scores, statistic: Callable[[Scores], np.ndarray], resamples: int = _RESAMPLES) -> Estimate:
    """Returns a statistic of the scores with its 95 % interval; deterministic."""
    samples = statistic(resample(scores, np.random.default_rng(0), resamples))
    return _estimate(statistic(scores), samples)


def resample(scores: Scores, rng: np.random.Generator, resamples: int) -> list[np.ndarray]:
    """Resamples the runs of each environment with replacement: [R, N_e] each."""
    return [runs[rng.integers(len(runs), size=(resamples, len(runs)))] for runs in scores]


def probability_of_improvement(better: Scores, worse: Scores) -> np.ndarray:
    """Returns the probability that a run of one method scores more than a run of another, averaged over environments.

    Ties count half.

    Args:
        better: scores of the first method.
        worse: scores of the second method, in the same environments.

    Returns:
        [] or [R] float64.
    """
    return np.mean([_above(x, y) for x, y in zip(better, worse, strict=True)], axis=0)


def estimate_improvement(better: Scores, worse: Scores, resamples: int = _RESAMPLES) -> Estimate:
    """Returns `probability_of_improvement` with its 95 % interval; runs of both methods are resampled."""
    rng = np.random.default_rng(0)
    samples = probability_of_improvement(resample(better, rng, resamples), resample(worse, rng, resamples))
    return _estimate(probability_of_improvement(better, worse), samples)


def performance_profile(scores: Scores, thresholds: np.ndarray, resamples: int = _RESAMPLES) -> tuple[np.ndarray, ...]:
    """Returns the fraction of runs above each threshold, and the ends of its 95 % interval.

    Args:
        scores: scores of a method.
        thresholds: [P] float64.
        resamples: number of bootstrap samples.

    Returns:
        (fraction [P], low [P], high [P]).
    """
    samples = _profile(resample(scores, np.random.default_rng(0), resamples), thresholds)
    low, high = np.quantile(samples, _ENDS, axis=1)
    return _profile(scores, thresholds), low, high


def _pool(scores: Scores) -> np.ndarray:
    return np.concatenate(scores, axis=-1)


def _profile(scores: Scores, thresholds: np.ndarray) -> np.ndarray:
    pooled = _pool(scores)
    return np.stack([(pooled > threshold).mean(-1) for threshold in thresholds])


def _above(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    difference = x[..., :, None] - y[..., None, :]
    return (difference > 0).mean((-2, -1)) + (difference == 0).mean((-2, -1)) / 2


def _estimate(value: np.ndarray, samples: np.ndarray) -> Estimate:
    low, high = np.quantile(samples, _ENDS)
    return Estimate(float(value), float(low), float(high))
