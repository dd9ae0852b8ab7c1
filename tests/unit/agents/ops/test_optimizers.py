"""Optimizers by hand in numpy, or against optax's own."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.ops.optimizers import OptimizerConfig, clip_by_parameters, make_optimizer
from envpool_bridge.errors import UserError

GRADIENTS = np.array([[3.0, 4.0], [0.3, -0.4], [-1.0, 2.0], [0.1, 0.2]], np.float32)
START = np.array([0.5, -2.0], np.float32)


def steps(config, gradients=GRADIENTS, rate=0.1):
    """Parameters after each step of a constant learning rate."""
    optimizer, params, out = make_optimizer(config, optax.constant_schedule(rate)), jnp.asarray(START), []
    state = optimizer.init(params)
    for gradient in gradients:
        updates, state = optimizer.update(jnp.asarray(gradient), state, params, num_updates=jnp.int32(0))
        params = optax.apply_updates(params, updates)
        out.append(params)
    return np.array(out)


def library_steps(optimizer):
    params, out = jnp.asarray(START), []
    state = optimizer.init(params)
    for gradient in GRADIENTS:
        updates, state = optimizer.update(jnp.asarray(gradient), state, params)
        params = optax.apply_updates(params, updates)
        out.append(params)
    return np.array(out)


def test_clipped_rmsprop_divides_by_the_root_mean_square():
    config = OptimizerConfig("rmsprop", epsilon=1e-2, max_grad_norm=1.0, decay=0.75)
    clipped = np.array([0.6, 0.8])
    expected = START - 0.1 * clipped / np.sqrt(0.25 * clipped**2 + 1e-2)
    np.testing.assert_allclose(steps(config)[0], expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["sgd", "rmsprop"])
def test_momentum_sums_steps_after_an_l2_penalty(name):
    config = OptimizerConfig(name, epsilon=1e-2, weight_decay=0.2, decay=0.75, momentum=0.9)
    params, velocity, square, expected = START.astype(float), np.zeros(2), np.zeros(2), []
    for gradient in GRADIENTS:
        step = gradient + 0.2 * params
        square = 0.75 * square + 0.25 * step**2
        velocity = 0.9 * velocity + (step / np.sqrt(square + 1e-2) if name == "rmsprop" else step)
        params = params - 0.1 * velocity
        expected.append(params)
    np.testing.assert_allclose(steps(config), expected, rtol=1e-5)


def test_laprop_is_the_momentum_of_scaled_and_clipped_gradients():
    """Both moments are corrected for their start at 0, and the clip compares whole arrays with their parameters."""
    config = OptimizerConfig("laprop", epsilon=1e-20, adaptive_clip=0.3, decay=0.999, momentum=0.9)
    params, mean, square, expected = START.astype(float), np.zeros(2), np.zeros(2), []
    for number, gradient in enumerate(GRADIENTS, start=1):
        largest = 0.3 * max(1e-3, np.sqrt((params**2).sum()))
        clipped = gradient * min(1.0, largest / np.sqrt((gradient**2).sum()))
        square = 0.999 * square + 0.001 * clipped**2
        scaled = clipped / (np.sqrt(square / (1 - 0.999**number)) + 1e-20)
        mean = 0.9 * mean + 0.1 * scaled
        params = params - 0.1 * mean / (1 - 0.9**number)
        expected.append(params)
    np.testing.assert_allclose(steps(config), expected, rtol=1e-4)


def test_an_adaptive_clip_lets_small_parameters_move():
    zeros, gradient = {"a": jnp.zeros(2), "b": jnp.array([3.0, 4.0])}, {"a": jnp.ones(2), "b": jnp.ones(2)}
    clip = clip_by_parameters(0.5)
    clipped, _ = clip.update(gradient, clip.init(zeros), zeros)
    np.testing.assert_allclose(clipped["a"], np.full(2, 0.5e-3 / np.sqrt(2)), rtol=1e-5)
    np.testing.assert_array_equal(clipped["b"], gradient["b"])


@pytest.mark.parametrize(
    ("config", "library"),
    [
        (OptimizerConfig(epsilon=1e-3), optax.adam(0.1, eps=1e-3)),
        (OptimizerConfig("adamw", 1e-3, 0.2), optax.adamw(0.1, eps=1e-3, weight_decay=0.2)),
        (OptimizerConfig("sgd", max_grad_norm=1.0), optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1))),
    ],
)
def test_make_optimizer_equals_the_library(config, library):
    np.testing.assert_allclose(steps(config), library_steps(library), rtol=1e-6)


def test_weight_decay_of_adam_is_part_of_the_gradient():
    config = OptimizerConfig(epsilon=1e-3, weight_decay=0.2)
    expected = library_steps(optax.chain(optax.add_decayed_weights(0.2), optax.adam(0.1, eps=1e-3)))
    np.testing.assert_allclose(steps(config), expected, rtol=1e-6)
    assert not np.allclose(expected, steps(OptimizerConfig("adamw", 1e-3, 0.2)), rtol=1e-3)


def test_accumulate_steps_once_on_the_mean_gradient():
    config = OptimizerConfig(max_grad_norm=1.0, accumulate=2)
    whole = steps(OptimizerConfig(max_grad_norm=1.0), GRADIENTS.reshape(2, 2, 2).mean(axis=1))
    np.testing.assert_allclose(steps(config), [START, whole[0], whole[0], whole[1]], rtol=1e-6)


def test_accumulate_takes_the_rate_of_the_present_update():
    optimizer = make_optimizer(OptimizerConfig("sgd", accumulate=2), lambda number: 0.1 * number)
    params = jnp.zeros(2)
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for number in (1, 3):
        step, state = update(jnp.ones(2), state, params, num_updates=jnp.int32(number))
    np.testing.assert_allclose(step, [-0.3, -0.3], rtol=1e-6)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"name": "lamb"}, "one of adam, adamw, laprop, rmsprop, sgd: got 'lamb'"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be positive"),
        ({"adaptive_clip": 0.0}, "adaptive_clip must be positive"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"weight_decay": -1.0}, "weight_decay must not be negative"),
        ({"decay": 1.0}, "decay must lie in"),
        ({"accumulate": 0}, "accumulate must be at least 1"),
    ],
)
def test_optimizer_config_rejects_invalid_fields(fields, match):
    with pytest.raises(UserError, match=match):
        OptimizerConfig(**fields)
