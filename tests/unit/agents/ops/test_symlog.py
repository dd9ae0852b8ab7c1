"""Symmetric logarithms, two-hot targets at exponential atoms, and the range of returns, against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.ops.return_range import follow_range, init_range, range_scale
from agents.ops.symlog import symexp, symexp_atoms, symexp_mean, symexp_two_hot, symlog

NUMBERS = np.array([0.0, 0.3, -0.3, 1.0, -17.5, 500.0, -1e5, 4e8], np.float32)


def test_symexp_inverts_symlog():
    np.testing.assert_allclose(symexp(symlog(NUMBERS)), NUMBERS, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(symlog(NUMBERS), np.sign(NUMBERS) * np.log(np.abs(NUMBERS) + 1), rtol=1e-5)


def test_atoms_are_symmetric_and_evenly_spaced_after_symlog():
    atoms = symexp_atoms(255)
    np.testing.assert_array_equal(atoms, -atoms[::-1])
    assert atoms[127] == 0.0
    np.testing.assert_allclose(symlog(atoms), np.linspace(-20, 20, 255), rtol=1e-4, atol=1e-5)


def test_a_target_has_two_neighbors_and_the_number_as_mean():
    target = np.asarray(symexp_two_hot(NUMBERS, 255), np.float64)
    atoms = symexp_atoms(255).astype(np.float64)
    np.testing.assert_allclose(target.sum(-1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(target @ atoms, NUMBERS, rtol=1e-5, atol=1e-6)
    for row in target:
        places = np.flatnonzero(row)
        assert len(places) <= 2
        assert np.ptp(places) <= 1
    beyond = np.asarray(symexp_two_hot(np.array([1e12, -1e12], np.float32), 255))
    assert beyond.argmax(-1).tolist() == [254, 0]


def test_the_mean_inverts_targets_and_is_0_for_equal_logits():
    logits = jnp.log(symexp_two_hot(NUMBERS, 255) + 1e-30)
    np.testing.assert_allclose(symexp_mean(logits), NUMBERS, rtol=1e-4, atol=1e-6)
    for scale in (0.0, 3.7):
        assert symexp_mean(jnp.full((5, 255), scale)).tolist() == [0.0] * 5


def test_the_range_is_that_of_returns_that_count():
    returns = np.random.default_rng(0).normal(size=(15, 40)).astype(np.float32) * 30
    counted = np.arange(40) % 2 == 0
    spoiled = np.where(counted, returns, 1e6)
    current = follow_range(init_range(), spoiled, counted, rate=0.25)
    expected = 0.25 * np.percentile(returns[:, counted], [5, 95])
    np.testing.assert_allclose([current.low, current.high], expected, rtol=1e-5)
    unchanged = follow_range(current, spoiled, np.zeros(40, bool), rate=0.25)
    assert (float(unchanged.low), float(unchanged.high)) == (float(current.low), float(current.high))


def test_the_range_follows_percentiles_and_is_at_least_1():
    returns = np.random.default_rng(0).normal(size=(15, 40)).astype(np.float32) * 30
    current = init_range()
    assert range_scale(current) == 1.0
    low = high = 0.0
    for _ in range(3):
        current = follow_range(current, returns, jnp.ones(returns.shape[-1], bool), rate=0.25)
        low += 0.25 * (np.percentile(returns, 5) - low)
        high += 0.25 * (np.percentile(returns, 95) - high)
    np.testing.assert_allclose([current.low, current.high], [low, high], rtol=1e-5)
    assert float(range_scale(current)) == pytest.approx(high - low, rel=1e-5)
    assert jax.tree.all(jax.tree.map(lambda leaf: leaf.dtype == jnp.float32, current))
