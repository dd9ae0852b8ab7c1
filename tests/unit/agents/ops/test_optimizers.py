"""Optimizers: RMSProp by hand."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.ops.optimizers import clipped_rmsprop


@pytest.mark.parametrize("initial", [1.0, 0.0])
def test_clipped_rmsprop_divides_by_the_root_mean_square(initial):
    optimizer = clipped_rmsprop(optax.constant_schedule(0.1), 1.0, 1e-2, decay=0.75, initial_scale=initial)
    params = jnp.zeros(2)
    grads, state = jnp.array([3.0, 4.0]), optimizer.init(params)
    updates, _ = optimizer.update(grads, state, params, num_updates=jnp.int32(0))
    clipped = np.array([0.6, 0.8])
    np.testing.assert_allclose(updates, -0.1 * clipped / np.sqrt(0.75 * initial + 0.25 * clipped**2 + 1e-2), rtol=1e-5)
