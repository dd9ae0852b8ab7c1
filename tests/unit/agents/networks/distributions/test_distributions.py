"""Distributions against closed forms and numerical integration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from agents.networks import distributions
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec

OBSERVATION = ArraySpec((2,), "float32")


def test_categorical_probabilities_entropy_and_mode():
    logits = jnp.log(jnp.array([[0.2, 0.5, 0.3]]))
    distribution = distributions.categorical(3)
    got = [float(distribution.log_prob(logits, jnp.array([action]))[0]) for action in range(3)]
    np.testing.assert_allclose(np.exp(got), [0.2, 0.5, 0.3], rtol=1e-5)
    expected = -(0.2 * np.log(0.2) + 0.5 * np.log(0.5) + 0.3 * np.log(0.3))
    assert float(distribution.entropy(logits)[0]) == pytest.approx(expected, rel=1e-5)
    assert int(distribution.mode(logits)[0]) == 1


def test_categorical_samples_have_the_given_frequencies():
    logits = jnp.broadcast_to(jnp.log(jnp.array([0.2, 0.5, 0.3])), (20_000, 3))
    samples = distributions.categorical(3).sample(logits, jax.random.split(jax.random.key(0), 20_000))
    np.testing.assert_allclose(np.bincount(samples) / 20_000, [0.2, 0.5, 0.3], atol=0.015)


@pytest.mark.parametrize("kind", ["categorical", "normal", "tanh"])
def test_sample_of_a_row_is_independent_of_other_rows(kind):
    distribution = {
        "categorical": distributions.categorical(4),
        "normal": distributions.diagonal_normal(2, (2,)),
        "tanh": distributions.tanh_normal(2, (2,), jnp.array(-1.0), jnp.array(1.0)),
    }[kind]
    parameters = jax.random.normal(jax.random.key(1), (8, 4))
    keys = jax.random.split(jax.random.key(2), 8)
    together = np.asarray(distribution.sample(parameters, keys))
    for row in range(8):
        alone = np.asarray(distribution.sample(parameters[row : row + 1], keys[row : row + 1]))
        np.testing.assert_array_equal(alone[0], together[row])


def test_normal_log_prob_and_entropy_are_the_textbooks():
    parameters = jnp.array([[0.5, -1.0, np.log(2.0), np.log(0.5)]])
    distribution = distributions.diagonal_normal(2, (2,))
    x = np.array([1.5, -1.5])
    mean, std = np.array([0.5, -1.0]), np.array([2.0, 0.5])
    density = np.prod(np.exp(-((x - mean) ** 2) / (2 * std**2)) / (std * np.sqrt(2 * np.pi)))
    assert float(distribution.log_prob(parameters, jnp.asarray(x)[None])[0]) == pytest.approx(np.log(density), rel=1e-5)
    entropy = sum(0.5 * np.log(2 * np.pi * np.e * s**2) for s in std)
    assert float(distribution.entropy(parameters)[0]) == pytest.approx(entropy, rel=1e-5)
    np.testing.assert_allclose(distribution.mode(parameters)[0], mean)


BOXES = {
    "interval": ((0.0, -2000.0), (100.0, 2000.0), (50.0, 0.0), (50.0, 2000.0)),
    "half-infinite": ((5.0, -np.inf), (np.inf, -3.0), (6.0, -4.0), (1.0, 1.0)),
    "unbounded or constant": ((-np.inf, 7.0), (np.inf, 7.0), (0.0, None), (1.0, 1.0)),
    "largest float": ((-np.finfo(np.float32).max, -1.0), (np.finfo(np.float32).max, 1.0), (0.0, 0.0), (1.0, 1.0)),
}


@pytest.mark.parametrize("name", BOXES)
def test_gaussians_act_in_the_declared_box(name):
    low, high, center, half = BOXES[name]
    distribution = distributions.distribution_for(EnvSpec("e", OBSERVATION, ArraySpec((2,), "float32", low, high)))
    mean, std = np.array([[0.5, -1.0], [0.0, 0.2]]), np.array([0.3, 2.0])
    parameters = jnp.concatenate([jnp.asarray(mean), jnp.broadcast_to(jnp.log(std), (2, 2))], -1)
    center = [7.0 + 1.0 if each is None else each for each in center]  # a constant is clipped to: any will do
    actual = [scipy.stats.norm(c + h * m, h * s) for c, h, m, s in zip(center, half, mean.T, std, strict=True)]
    x = np.stack([each.ppf([0.3, 0.9]) for each in actual], -1)
    expected = sum(each.logpdf(x[:, index]) for index, each in enumerate(actual))
    np.testing.assert_allclose(distribution.log_prob(parameters, jnp.asarray(x, jnp.float32)), expected, rtol=1e-4)
    np.testing.assert_allclose(distribution.entropy(parameters), sum(each.entropy() for each in actual), rtol=1e-5)
    np.testing.assert_allclose(distribution.mode(parameters), np.stack([each.mean() for each in actual], -1), rtol=1e-6)
    many = distribution.sample(jnp.repeat(parameters[:1], 20_000, 0), jax.random.split(jax.random.key(0), 20_000))
    np.testing.assert_allclose(np.std(many, 0), [each.std()[0] for each in actual], rtol=0.02)


def test_normal_samples_have_mean_and_spread():
    parameters = jnp.broadcast_to(jnp.array([1.0, np.log(3.0)]), (20_000, 2))
    samples = distributions.diagonal_normal(1, (1,)).sample(parameters, jax.random.split(jax.random.key(0), 20_000))
    assert float(samples.mean()) == pytest.approx(1.0, abs=0.08)
    assert float(samples.std()) == pytest.approx(3.0, abs=0.08)


def test_squashed_density_integrates_to_one_over_the_bounds():
    distribution = distributions.tanh_normal(1, (1,), jnp.array([-2.0]), jnp.array([4.0]))
    grid = np.linspace(-2.0, 4.0, 20_001)[1:-1].astype(np.float32)
    parameters = jnp.broadcast_to(jnp.array([0.3, np.log(0.7)]), (len(grid), 2))
    density = np.exp(np.asarray(distribution.log_prob(parameters, jnp.asarray(grid)[:, None]), np.float64))
    assert density.sum() * (grid[1] - grid[0]) == pytest.approx(1.0, abs=2e-3)


def test_squashed_entropy_is_that_of_the_bounded_action():
    low, high = np.array([-1.0, 0.0]), np.array([1.0, 100.0])
    mean, log_std = np.meshgrid([-2.0, 0.0, 0.7], [-2.0, 0.0, 0.7, 1.4])
    quantile = scipy.stats.norm.ppf((np.arange(200_001) + 0.5) / 200_001)[:, None]
    expected = 0.0
    for left, right in zip(low, high, strict=True):
        action = left + (right - left) * scipy.special.expit(2.0 * (mean.ravel() + np.exp(log_std.ravel()) * quantile))
        expected += np.mean(np.log(np.maximum(np.diff(action, axis=0), 1e-300) * 200_001), axis=0)  # H = E[log dx/dp]
    parameters = jnp.stack([mean, mean, log_std, log_std], -1).reshape(-1, 4)
    entropy = distributions.tanh_normal(2, (2,), low, high).entropy(parameters)
    np.testing.assert_allclose(entropy, expected, atol=0.08)
    np.testing.assert_allclose(entropy[:9], expected[:9], atol=4e-3)


def test_squashed_samples_are_bounded_with_finite_log_prob():
    distribution = distributions.tanh_normal(1, (1,), jnp.array([-2.0]), jnp.array([4.0]))
    parameters = jnp.broadcast_to(jnp.array([5.0, 1.0]), (1000, 2))
    samples = distribution.sample(parameters, jax.random.split(jax.random.key(0), 1000))
    assert float(samples.min()) >= -2.0
    assert float(samples.max()) <= 4.0
    assert bool(jnp.isfinite(distribution.log_prob(parameters, samples)).all())


def test_the_action_spec_chooses_the_distribution():
    assert distributions.distribution_for(EnvSpec("e", OBSERVATION, DiscreteSpec(5))).num_parameters == 5
    box = EnvSpec("e", OBSERVATION, ArraySpec((2, 3), "float32"))
    distribution = distributions.distribution_for(box)
    assert distribution.num_parameters == 12
    assert distribution.mode(jnp.zeros((7, 12))).shape == (7, 2, 3)
    with pytest.raises(UserError, match="finite bounds"):
        distributions.distribution_for(box, squash=True)
