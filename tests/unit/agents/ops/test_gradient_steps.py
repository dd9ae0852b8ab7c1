"""Gradient steps: every step once, in order, and an early stop."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents import ppo
from agents.api import GradientSteps, LearnerState, Progress
from agents.networks.config import NetworkConfig
from agents.ops.gradient_steps import init_progress, make_update, take_step
from agents.ops.minibatches import Batch, Minibatches, shuffled_minibatches
from agents.ops.policy_gradient import SurrogateCoefficients
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec

SPEC = EnvSpec("test", ArraySpec((3,), "float32"), DiscreteSpec(2))


def counting_steps(num_steps=5) -> GradientSteps:
    """params <- 2 params + factor * step, written as gradient steps; the factor comes from `extra`, through `prepare`."""

    def prepare(params, extra, batch, key, num_updates):
        return {"factor": extra * batch}, {"prepared": extra}

    def gradient(params, prepared, step):
        grads = params + prepared["factor"] * step
        return grads, {"step": step.astype(jnp.float32)}

    def apply(progress, grads, metrics):
        return dataclasses.replace(progress, params=progress.params + grads, opt_state=progress.opt_state + 1)

    def finish(state, progress, prepared_metrics, step_metrics):
        metrics = prepared_metrics | step_metrics
        return LearnerState(progress.params, progress.opt_state, state.num_updates + 1, state.extra), metrics

    return GradientSteps(num_steps, prepare, gradient, apply, finish)


def counting_state() -> LearnerState:
    return LearnerState(jnp.float32(1.0), jnp.int32(0), jnp.int32(7), jnp.float32(3.0))


def test_make_update_takes_each_gradient_step_once_in_order():
    state, metrics = jax.jit(make_update(counting_steps()))(counting_state(), jnp.float32(2.0), jax.random.key(0))
    expected = 1.0
    for step in range(5):
        expected = 2 * expected + 3.0 * 2.0 * step
    assert float(state.params) == expected
    assert int(state.opt_state) == 5
    assert int(state.num_updates) == 8
    np.testing.assert_array_equal(metrics["step"], np.arange(5))
    assert float(metrics["prepared"]) == 3.0


@pytest.mark.parametrize(("measured", "taken"), [([0, 0, 0], 3), ([0, 2, 0], 1), ([2, 0, 0], 0), ([0, 0, 2], 2)])
def test_take_step_skips_the_step_that_stops_and_all_later(measured, taken):
    optimizer = optax.sgd(1.0, momentum=0.5)
    params = {"w": jnp.float32(0.0)}
    progress = Progress(params, optimizer.init(params), jnp.int32(0), jnp.int32(0))
    plain, velocity = 0.0, 0.0
    for number, kl in enumerate(measured):
        progress = take_step(optimizer, progress, {"w": jnp.float32(-1.0)}, stop=jnp.float32(kl) > 1.0)
        if number < taken:
            velocity = 0.5 * velocity + 1.0
            plain += velocity
    assert float(progress.params["w"]) == plain
    assert (
        float(jax.tree.leaves(progress.opt_state)[0]) == -velocity
    )  # the next update begins without the steps left out
    assert int(progress.num_skipped) == 3 - taken


def test_take_step_without_stop_applies_all_steps():
    optimizer = optax.sgd(0.5)
    progress = Progress({"w": jnp.float32(0.0)}, optimizer.init({"w": jnp.float32(0.0)}), jnp.int32(0), jnp.int32(0))
    for _ in range(3):
        progress = take_step(optimizer, progress, {"w": jnp.float32(-1.0)})
    assert float(progress.params["w"]) == 1.5
    assert int(progress.num_skipped) == 0


def test_init_progress_has_no_skipped_steps():
    state = counting_state()
    progress = init_progress(state)
    assert progress.params is state.params
    assert progress.opt_state is state.opt_state
    assert progress.num_updates is state.num_updates
    assert int(progress.num_skipped) == 0


def test_each_epoch_visits_every_step_once_in_its_own_order():
    order = np.asarray(shuffled_minibatches(jax.random.key(0), 16, num_epochs=3, num_minibatches=4))
    assert order.shape == (12, 4)
    epochs = order.reshape(3, 16)
    np.testing.assert_array_equal(np.sort(epochs), np.tile(np.arange(16), (3, 1)))
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_a_gradient_of_ppo_is_that_of_its_minibatch_only():
    config = ppo.PPOConfig(num_epochs=1, num_minibatches=4, normalize_advantage=False)
    agent = ppo.make_ppo(config, SPEC, NetworkConfig(hidden_sizes=(8,)))
    rng = np.random.default_rng(0)
    batch = Batch(
        observation=rng.normal(size=(8, 2, 3)).astype(np.float32),
        action=rng.integers(0, 2, (8, 2)).astype(np.int32),
        **{
            name: rng.normal(size=(8, 2)).astype(np.float32)
            for name in ("proximal_log_prob", "importance", "old_value", "advantage", "target_value")
        },
        weight=np.ones((8, 2), np.float32),
        is_first=np.zeros((8, 2), bool),
    )
    now = SurrogateCoefficients(config.clip_epsilon, config.entropy_coef)
    order = jnp.array([[3, 1], [0, 2], [7, 4], [6, 5]], jnp.int32)
    params = agent.init(jax.random.key(0)).params
    gradient = jax.jit(agent.gradient_steps.gradient)
    spoiled = jax.tree.map(np.copy, batch)
    spoiled.advantage[[0, 1, 2, 3, 5, 6]] += 10.0
    outside, _ = gradient(params, Minibatches(spoiled, order, now), np.int32(2))
    expected, metrics = gradient(params, Minibatches(batch, order, now), np.int32(2))
    chex.assert_trees_all_equal(outside, expected)
    other, _ = gradient(params, Minibatches(spoiled, order, now), np.int32(1))
    kept, _ = gradient(params, Minibatches(batch, order, now), np.int32(1))
    assert not np.allclose(jax.tree.leaves(other)[0], jax.tree.leaves(kept)[0])
    squares = sum(float(np.sum(np.square(leaf))) for leaf in jax.tree.leaves(expected))
    assert float(metrics["gradient/norm"]) == pytest.approx(np.sqrt(squares), rel=1e-5)
