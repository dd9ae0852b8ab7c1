"""Importance weights against the paper's formula in double precision."""

import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import ReplayConfig
from agents.ops.importance_weights import importance_exponent_schedule, importance_weights
from envpool_bridge.errors import UserError

PRIORITIZED = ReplayConfig(priority_exponent=0.6)


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_importance_weights_match_formula(beta):
    probability = np.random.default_rng(0).random(64).astype(np.float32) * 1e-3 + 1e-9
    raw = (1000 * probability.astype(np.float64)) ** -beta
    weights = importance_weights(jnp.asarray(probability), jnp.ones(64, bool), beta)
    np.testing.assert_allclose(weights, raw / raw.max(), rtol=1e-5)


def test_even_draws_all_count_fully():
    assert importance_weights(jnp.full(4, 1e-7), jnp.ones(4, bool), 0.7).tolist() == [1.0] * 4


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_windows_that_do_not_count_have_no_effect(beta):
    probability, counted = jnp.array([0.2, 1e-30, 0.1]), jnp.array([1.0, 0.0, 1.0])
    weights = importance_weights(probability, counted, beta)
    np.testing.assert_allclose(weights, [0.5**beta, 0.0, 1.0], rtol=1e-6)
    assert importance_weights(probability, jnp.zeros(3), beta).tolist() == [0.0] * 3


def test_the_exponent_grows_to_one_over_the_run():
    schedule = importance_exponent_schedule(PRIORITIZED, 0.4, total_updates=200)
    exponents = [float(schedule(jnp.int32(n))) for n in (0, 100, 200, 400)]
    np.testing.assert_allclose(exponents, [0.4, 0.7, 1.0, 1.0], rtol=1e-6)
    assert float(importance_exponent_schedule(PRIORITIZED, 1.0, 0)(jnp.int32(3))) == 1.0


def test_a_constant_exponent_needs_no_number_of_updates():
    schedule = importance_exponent_schedule(PRIORITIZED, 0.6, 0, final=0.6)
    assert float(schedule(jnp.int32(3))) == pytest.approx(0.6)


def test_exponent_of_uniform_replay_is_zero():
    schedule = importance_exponent_schedule(ReplayConfig(), 0.4, 0)
    assert float(schedule(jnp.int32(3))) == 0.0
    assert importance_weights(jnp.array([0.1, 0.4]), jnp.ones(2, bool), schedule(jnp.int32(3))).tolist() == [1.0, 1.0]


def test_invalid_importance_exponents_are_rejected():
    with pytest.raises(UserError, match=r"must lie in \[0, 1\]: got 1.2"):
        importance_exponent_schedule(PRIORITIZED, 1.2, 10)
    with pytest.raises(UserError, match="changes from 0.4 to 1.0 over the run .* total_updates=0"):
        importance_exponent_schedule(PRIORITIZED, 0.4, 0)
