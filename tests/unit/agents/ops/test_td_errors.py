"""Losses and priorities of temporal-difference errors against hand values and loops."""

import numpy as np

from agents.ops.td_errors import ensemble_squared_error, window_priority


def test_window_priority_mixes_largest_and_mean_of_counted_steps():
    error = np.array([[1.0, 9.0, 5.0], [-2.0, -4.0, 5.0], [6.0, 2.0, 5.0]], np.float32)
    counted = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 0.0]], np.float32)
    # 0.9 * 6 + 0.1 * 3;  0.9 * 4 + 0.1 * 3;  no step counts
    for each in (counted, counted > 0):
        np.testing.assert_allclose(window_priority(error, each, 0.9), [5.7, 3.9, 0.0], rtol=1e-6)


def test_ensemble_squared_error_equals_a_loop():
    rng = np.random.default_rng(0)
    value, target = rng.normal(size=(2, 5)).astype(np.float32), rng.normal(size=5).astype(np.float32)
    weight, importance = np.array([1, 1, 0, 1, 0], np.float32), rng.random(5).astype(np.float32)
    target[2] = np.nan  # does not count
    loss, error = ensemble_squared_error(value, target, weight, importance)
    expected = 0.0
    for member in range(2):
        expected += 0.5 * np.mean([importance[n] * (value[member, n] - target[n]) ** 2 for n in (0, 1, 3)])
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(error, np.where(weight > 0, value - target, 0.0), rtol=1e-6)
