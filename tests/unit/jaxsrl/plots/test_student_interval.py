"""Student's t interval, against its tables and against draws of normal values."""

import numpy as np
import pytest

from jaxsrl.plots.bootstrap import mean_curve, student_interval

# Two-sided 95 % quantiles by degrees of freedom, as printed in tables.
TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 30: 2.042}


@pytest.mark.parametrize(("freedom", "quantile"), TABLE.items())
def test_student_interval_has_the_quantiles_of_the_tables(freedom, quantile):
    values = np.random.default_rng(freedom).normal(size=(freedom + 1, 5))
    mean = values.sum(0) / (freedom + 1)
    deviation = np.sqrt(((values - mean) ** 2).sum(0) / freedom)
    low, high = student_interval(values)
    np.testing.assert_allclose(high - mean, quantile * deviation / np.sqrt(freedom + 1), rtol=2e-4)
    np.testing.assert_allclose(mean - low, high - mean)


def test_student_interval_of_three_seeds_covers_the_mean():
    values = np.random.default_rng(0).normal(5.0, 2.0, size=(3, 20_000))
    low, high = student_interval(values)
    assert np.mean((low <= 5.0) & (high >= 5.0)) == pytest.approx(0.95, abs=0.01)


def test_student_interval_of_one_seed_has_no_width():
    low, high = student_interval(np.array([[1.0, 2.0]]))
    np.testing.assert_array_equal([low, high], [[1, 2], [1, 2]])


def test_mean_curve_takes_the_interval():
    curves = [(np.array([0.0, 2.0]), np.array([value, value])) for value in (1.0, 2.0, 3.0)]
    mean = mean_curve(curves, points=3, interval=student_interval)
    np.testing.assert_allclose(mean.high, 2 + 4.3027 / np.sqrt(3), rtol=1e-4)
