"""The noisy layer against the paper's formula with weights written out."""

import jax
import numpy as np
import pytest

from agents.networks.torsos.noisy_dense import NoisyDense, scaled_noise

LAYER = NoisyDense(3, sigma=0.5)
X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
apply = jax.jit(LAYER.apply)


@pytest.fixture(scope="module")
def params():
    return LAYER.init(jax.random.key(0), X, None)


def test_weights_are_the_papers_with_factorized_noise(params):
    p, key = params["params"], jax.random.key(1)
    inward, outward = scaled_noise(key, 0, 4), scaled_noise(key, 1, 3)
    kernel = p["kernel"] + p["kernel_deviation"] * np.outer(inward, outward)
    bias = p["bias"] + p["bias_deviation"] * outward
    np.testing.assert_allclose(apply(params, X, key), X @ kernel + bias, rtol=1e-5, atol=1e-6)


def test_first_means_and_deviations_are_the_papers(params):
    p = params["params"]
    assert 0.3 < np.abs(p["kernel"]).max() <= 0.5
    np.testing.assert_array_equal(p["kernel_deviation"], np.full((4, 3), 0.25))
    np.testing.assert_array_equal(p["bias_deviation"], np.full(3, 0.25))


def test_without_keys_only_means_count(params):
    p = params["params"]
    np.testing.assert_allclose(LAYER.apply(params, X, None), X @ p["kernel"] + p["bias"], rtol=1e-5, atol=1e-6)


def test_rows_with_keys_of_their_own_have_noise_of_their_own(params):
    keys = jax.random.split(jax.random.key(2), 6)
    together = apply(params, X, keys)
    np.testing.assert_allclose(together[2], apply(params, X, keys[2])[2], rtol=1e-5, atol=1e-6)
    assert len({float(y) for y in apply(params, np.ones_like(X), keys)[:, 0]}) == 6


def test_noise_is_a_signed_root_of_a_standard_normal():
    noise = np.asarray(scaled_noise(jax.random.key(3), 0, 40_000))
    original = np.sign(noise) * noise**2
    np.testing.assert_allclose([original.mean(), original.std()], [0.0, 1.0], atol=0.03)  # five standard deviations
    assert not np.array_equal(noise[:5], scaled_noise(jax.random.key(3), 1, 40_000)[:5])
