"""Losses of action values against loops in double precision, hand values and rlax."""

# pyright: reportArgumentType=false

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.ops.value_distributions import (
    categorical_value,
    clamped_fraction,
    huber,
    project,
    quantile_huber,
    quantile_value,
    rescale,
    scalar_value,
    unrescale,
)

rlax = pytest.importorskip("rlax")
RNG = np.random.default_rng(0)
ATOMS, LOW, HIGH = 11, -2.0, 3.0
SUPPORT = np.linspace(LOW, HIGH, ATOMS)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def outputs(lead=(20,), size=ATOMS):
    return RNG.normal(size=(*lead, size)).astype(np.float32)


def projected_by_loop(values, probabilities):
    """Algorithm 1 of Bellemare et al. 2017, with a value that lies on an atom given wholly to it."""
    result = np.zeros((len(values), ATOMS))
    for row, atom in np.ndindex(*values.shape):
        place = (np.clip(values[row, atom], LOW, HIGH) - LOW) / (HIGH - LOW) * (ATOMS - 1)
        below = int(np.floor(place))
        result[row, below] += probabilities[row, atom] * (1 - (place - below))
        if place > below:
            result[row, below + 1] += probabilities[row, atom] * (place - below)
    return result


def test_c51_projection_matches_paper():
    values, probabilities = RNG.normal(size=(20, ATOMS), scale=3.0).astype(np.float32), softmax(outputs())
    values[0], values[1] = SUPPORT, HIGH + 1  # on the atoms, and all beyond
    found = jax.jit(project, static_argnums=(2, 3))(values, probabilities, LOW, HIGH)
    np.testing.assert_allclose(found, projected_by_loop(values, probabilities), atol=1e-5)
    np.testing.assert_allclose(np.sum(found, -1), 1.0, atol=1e-5)
    theirs = jax.jit(jax.vmap(rlax.categorical_l2_project, (0, 0, None)))(values, probabilities, jnp.asarray(SUPPORT))
    np.testing.assert_allclose(found, theirs, atol=1e-4)


def test_c51_loss_and_priority_match_reference():
    taken, following = outputs(), outputs()
    reward, discount = RNG.normal(size=(2, 20)).astype(np.float32)
    values = categorical_value(ATOMS, LOW, HIGH)
    found, priority = jax.jit(values.loss)(taken, following, reward, discount)
    target = projected_by_loop(reward[:, None] + discount[:, None] * SUPPORT, softmax(following))
    log_probs = np.log(softmax(taken))
    np.testing.assert_allclose(found, -(target * log_probs).sum(-1), rtol=1e-4)
    entropy = -np.sum(np.where(target > 0, target * np.log(np.maximum(target, 1e-300)), 0.0), -1)
    np.testing.assert_allclose(priority, -(target * log_probs).sum(-1) - entropy, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(values.mean(taken), (softmax(taken) * SUPPORT).sum(-1), rtol=1e-4, atol=1e-6)
    returns, weight = reward[:, None] + discount[:, None] * SUPPORT, RNG.integers(0, 2, 20).astype(np.float32)
    beyond = (softmax(following) * ((returns < LOW) | (returns > HIGH))).sum(-1)
    counted = clamped_fraction(values, following, reward, discount, weight)
    np.testing.assert_allclose(counted["value/clamped_fraction"], (beyond * weight).sum() / weight.sum(), rtol=1e-4)
    assert clamped_fraction(scalar_value(), following[:, :1], reward, discount, weight) == {}


def test_quantiles_are_fitted_as_rlax_and_the_loop_do():
    kappa, shares = 0.7, (np.arange(5) + 0.5) / 5
    taken, target = outputs((4,), 5), outputs((4,), 8)
    found = jax.jit(quantile_huber, static_argnums=3)(taken, target, shares.astype(np.float32), kappa)
    expected = np.zeros(4)
    for row in range(4):
        for share, quantile in zip(shares, taken[row], strict=True):
            for sample in target[row]:
                u = sample - quantile
                size = 0.5 * u**2 if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
                expected[row] += abs(share - (u < 0)) * size / kappa / 8
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    theirs = jax.vmap(lambda a, b: rlax.quantile_regression_loss(a, jnp.asarray(shares, jnp.float32), b, kappa))
    np.testing.assert_allclose(found * kappa, jax.jit(theirs)(taken, target), rtol=1e-4)  # rlax does not divide


def test_quantile_priority_is_difference_of_means():
    taken, following = outputs((3,), 5), outputs((3,), 5)
    reward, discount = np.array([1.0, -2.0, 0.5], np.float32), np.array([0.9, 0.0, 0.5], np.float32)
    _, priority = jax.jit(quantile_value(5).loss)(taken, following, reward, discount)
    expected = np.abs(reward + discount * following.mean(-1) - taken.mean(-1))
    np.testing.assert_allclose(priority, expected, rtol=1e-4)


@pytest.mark.parametrize("delta", [None, 0.5])
def test_scalar_loss_is_square_or_huber_without_target_gradient(delta):
    values = scalar_value(delta)
    taken, following = np.array([[0.0], [2.0]], np.float32), np.array([[1.0], [5.0]], np.float32)
    reward, discount = np.array([0.1, 1.0], np.float32), np.array([0.9, 0.0], np.float32)
    # errors: 0.1 + 0.9 - 0 = 1, and 1 - 2 = -1
    found, priority = values.loss(taken, following, reward, discount)
    np.testing.assert_allclose(found, [0.5, 0.5] if delta is None else [0.375, 0.375], rtol=1e-6)
    np.testing.assert_allclose(priority, [1.0, 1.0], rtol=1e-6)
    of_both = jax.grad(lambda a, b: values.loss(a, b, reward, discount)[0].sum(), argnums=(0, 1))
    by_taken, by_following = of_both(taken, following)
    np.testing.assert_allclose(by_taken[:, 0], [-1.0, 1.0] if delta is None else [-0.5, 0.5], rtol=1e-6)
    assert not by_following.any()


def test_hubers_loss_is_rlaxs():
    error = np.linspace(-3, 3, 13).astype(np.float32)
    np.testing.assert_allclose(huber(error, 0.8), rlax.huber_loss(jnp.asarray(error), 0.8), rtol=1e-6)


def test_rescale_and_inverse_over_nine_decades():
    x = np.concatenate([-np.logspace(-4, 5, 19), [0.0], np.logspace(-4, 5, 19)]).astype(np.float32)
    found = rescale(x, 1e-3)
    expected = np.sign(x) * (np.sqrt(np.abs(x.astype(np.float64)) + 1) - 1) + 1e-3 * x
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-7)
    np.testing.assert_allclose(found, rlax.signed_hyperbolic(jnp.asarray(x), 1e-3), rtol=1e-6)
    np.testing.assert_allclose(unrescale(found, 1e-3), x, rtol=2e-3, atol=5e-7)
    big = np.abs(x) > 1
    np.testing.assert_allclose(unrescale(found, 1e-3)[big], x[big], rtol=5e-6)


def test_a_rescaled_value_backs_up_in_reward_units():
    values = scalar_value(None, 1e-3)
    # h^-1(h(100)) = 100, so the target is h(1 + 0.5 * 100)
    target = values.backup(np.float32(1.0), np.float32(0.5), rescale(np.float32(100.0), 1e-3))
    np.testing.assert_allclose(target, np.sqrt(52.0) - 1 + 0.051, rtol=1e-5)
