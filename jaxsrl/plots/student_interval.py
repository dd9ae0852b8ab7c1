"""Interval of a mean over few repetitions (Student 1908)."""

import numpy as np
from scipy import special

from jaxsrl.plots.bootstrap import CONFIDENCE


def student_interval(values: np.ndarray, confidence: float = CONFIDENCE) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ends of Student's t interval of the mean over the first axis; the mean itself for one repetition.

    For three to five repetitions it covers the mean of normal values as often as it states. The bootstrap covers it less often.

    Args:
        values: [N, ...] float64.
        confidence: probability that the interval contains the mean.

    Returns:
        (low [...], high [...]).
    """
    mean, count = values.mean(0), len(values)
    if count == 1:
        return mean, mean
    quantile = float(special.stdtrit(count - 1, (1 + confidence) / 2))
    half = quantile * values.std(0, ddof=1) / np.sqrt(count)
    return mean - half, mean + half
