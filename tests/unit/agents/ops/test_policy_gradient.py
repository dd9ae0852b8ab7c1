"""Probability ratios of steps that do not count, and the approximate KL divergence."""

import jax
import jax.numpy as jnp
import numpy as np

from agents.ops.policy_gradient import approximate_kl, counted_log_ratio


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
