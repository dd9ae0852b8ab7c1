"""Value errors, probability ratios of steps that do not count, and the approximate KL divergence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.ops.policy_gradient import (
    ActorCriticCoefficients,
    actor_critic_loss,
    approximate_kl,
    clipped_value_error,
    counted_log_ratio,
)


def test_counted_log_ratio_is_zero_where_a_step_only_reset():
    behavior = np.array([[np.log(0.25)], [np.nan]], np.float32)
    counts = np.array([[True], [False]])
    got = counted_log_ratio(jnp.log(jnp.full((2, 1), 0.5)), behavior, counts)
    np.testing.assert_allclose(got[:, 0], [np.log(2.0), 0.0], rtol=1e-5)


def test_log_ratio_has_no_gradient_where_it_would_overflow():
    behavior, counts = np.array([0.0, -1e9], np.float32), np.array([True, False])
    grads = jax.grad(lambda x: jnp.sum(jnp.exp(counted_log_ratio(x, behavior, counts))))(jnp.zeros(2))
    np.testing.assert_allclose(grads, [1.0, 0.0])


def test_approximate_kl_is_zero_for_the_same_policy():
    got = approximate_kl(jnp.array([0.0, 0.3, -0.3]))
    np.testing.assert_allclose(got, [0.0, np.exp(0.3) - 1.3, np.exp(-0.3) - 0.7], atol=1e-6)
    small = 1e-5 * np.random.default_rng(0).normal(size=4096).astype(np.float32)
    got = approximate_kl(jnp.asarray(small))
    assert float(jnp.min(got)) >= 0.0
    assert float(jnp.mean(got)) == pytest.approx(float(np.mean(small.astype(float) ** 2)) / 2, rel=0.05)


@pytest.mark.parametrize("clip_epsilon", [None, 0.3])
@pytest.mark.parametrize("delta", [None, 0.5])
def test_clipped_value_error_is_the_larger_of_both_errors(clip_epsilon, delta):
    rng = np.random.default_rng(0)
    value, old, target = rng.normal(size=(3, 50))

    def error(x):
        size = abs(x - target)
        return size**2 if delta is None else np.where(size <= delta, size**2, 2 * delta * size - delta**2)

    expected = error(value)
    if clip_epsilon is not None:
        near = np.minimum(np.maximum(value, old - clip_epsilon), old + clip_epsilon)
        expected = np.maximum(expected, error(near))
    got = clipped_value_error(value, old, target, clip_epsilon, delta)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_actor_critic_loss_counts_the_huber_error():
    one = jnp.ones((1, 1))
    coefficients = ActorCriticCoefficients(value=2.0, entropy=0.0, huber_delta=0.5)
    total, metrics = actor_critic_loss(0.0 * one, one, 3.0 * one, 0.0 * one, one, one, coefficients)
    assert float(metrics["loss/value"]) == pytest.approx(
        0.5 * (2.0 - 0.25)
    )  # Huber's error of 2 is delta (2 - delta / 2)
    assert float(total) == pytest.approx(2.0 * 0.875)
