"""Means over repetitions and their intervals, against every resample there is."""

import itertools

import numpy as np
import pytest

from jaxsrl.plots.bootstrap import bootstrap_mean, mean_curve


@pytest.mark.parametrize("confidence", [0.95, 0.5])
def test_the_interval_is_that_of_all_resamples(confidence):
    values = np.array([[0.0, 5.0], [1.0, 5.0], [4.0, 5.0], [10.0, 6.0]])
    means = np.array([np.mean([values[i] for i in draw], 0) for draw in itertools.product(range(4), repeat=4)])
    low, high = bootstrap_mean(values, confidence)
    # 256 resamples are equally likely; where the quantile falls between two of their means, chance decides.
    for ours, share in ((low, (1 - confidence) / 2), (high, (1 + confidence) / 2)):
        least, most = np.quantile(means, share - 0.012, axis=0), np.quantile(means, min(1, share + 0.012), axis=0)
        assert (least - 1e-9 <= ours).all()
        assert (ours <= most + 1e-9).all()
    assert (high - low)[0] > 3 * (high - low)[1] > 0


def test_one_run_has_no_width_and_equal_runs_neither():
    for values in (np.array([[1.0, 2.0]]), np.array([[1.0, 2.0]] * 5)):
        low, high = bootstrap_mean(values)
        np.testing.assert_allclose(low, [1, 2])
        np.testing.assert_allclose(high, [1, 2])


def test_mean_curve_covers_the_common_range():
    first = (np.array([0.0, 10.0, 20.0]), np.array([0.0, 10.0, 10.0]))
    second = (np.array([5.0, 15.0]), np.array([1.0, 3.0]))
    mean = mean_curve([first, second], points=3)
    np.testing.assert_array_equal(mean.x, [5, 10, 15])
    np.testing.assert_allclose(mean.mean, [(5 + 1) / 2, (10 + 2) / 2, (10 + 3) / 2])
    assert ((mean.low <= mean.mean) & (mean.mean <= mean.high)).all()
    np.testing.assert_allclose([mean.low[0], mean.high[0]], [1, 5])


def test_curves_without_anything_in_common_have_no_mean():
    mean = mean_curve([(np.array([0.0, 1.0]), np.zeros(2)), (np.array([2.0, 3.0]), np.zeros(2))])
    assert mean.x.shape == mean.mean.shape == mean.low.shape == (0,)


def test_the_same_curves_give_the_same_interval():
    curves = [(np.arange(5.0), np.random.default_rng(seed).normal(size=5)) for seed in range(4)]
    np.testing.assert_array_equal(mean_curve(curves).low, mean_curve(curves).low)
