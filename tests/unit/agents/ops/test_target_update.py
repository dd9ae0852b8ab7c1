"""Target networks against numpy loops and hand values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.ops.target_update import periodic, polyak
from envpool_bridge.errors import UserError

TARGET = {"kernel": np.array([[1.0, -2.0]], np.float32), "bias": np.array([4.0], np.float32)}
ONLINE = {"kernel": np.array([[3.0, 6.0]], np.float32), "bias": np.array([0.0], np.float32)}


def test_a_polyak_step_goes_a_fraction_of_the_way():
    moved = jax.jit(polyak)(TARGET, ONLINE, 0.25)
    np.testing.assert_array_equal(moved["kernel"], [[1.5, 0.0]])
    np.testing.assert_array_equal(moved["bias"], [3.0])


def test_many_polyak_steps_are_the_numpy_loop():
    rng = np.random.default_rng(0)
    target, expected = np.zeros(3, np.float32), np.zeros(3)
    step = jax.jit(polyak)
    for _ in range(50):
        online = rng.normal(size=3).astype(np.float32)
        target = step(target, online, 0.05)
        expected = expected + 0.05 * (online.astype(np.float64) - expected)
    np.testing.assert_allclose(target, expected, rtol=1e-5)


def test_polyak_with_tau_one_copies_and_zero_keeps():
    rng = np.random.default_rng(1)
    target, online = (rng.normal(size=1000).astype(np.float32) for _ in range(2))
    np.testing.assert_array_equal(jax.jit(polyak)(target, online, 1.0), online)
    np.testing.assert_array_equal(jax.jit(polyak)(target, online, 0.0), target)


def test_a_polyak_step_keeps_the_dtype_of_the_target():
    moved = polyak(jnp.zeros(2, jnp.bfloat16), jnp.ones(2, jnp.bfloat16), jnp.float32(0.5))
    assert moved.dtype == jnp.bfloat16


def test_periodic_target_is_copied_at_multiples_of_period():
    step = jax.jit(periodic, static_argnums=3)
    copied = [int(n) for n in range(1, 10) if step(TARGET, ONLINE, jnp.int32(n), 3)["bias"][0] == 0.0]
    assert copied == [3, 6, 9]
    np.testing.assert_array_equal(step(TARGET, ONLINE, jnp.int32(2), 3)["kernel"], TARGET["kernel"])


def test_target_update_rejects_settings_without_updates():
    with pytest.raises(UserError, match="at least 1 gradient step: got 0"):
        periodic(TARGET, ONLINE, jnp.int32(1), 0)
