"""The parameter server in lockstep against the plain update, on several devices."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents import ppo
from agents.api import GradientSteps, LearnerState, Trajectory
from agents.networks.config import NetworkConfig
from agents.ops.gradient_steps import take_step
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.learner.finite_updates import SKIPPED
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.learner.parameter_server.packed_tree import pack
from jaxsrl.learner.parameter_server.synchronous import Replica, SynchronousUpdate

SPEC = EnvSpec("test", ArraySpec((3,), "float32"), DiscreteSpec(2))
NETWORK = NetworkConfig(hidden_sizes=(8,))
CONFIG = ppo.PPOConfig(learning_rate=1e-2, num_epochs=2, num_minibatches=2)
KEY = jax.random.key(5)


def trajectory(seed: int, num_steps=8, num_rows=8) -> Trajectory:
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_rows)
    terminated = rng.random(shape) < 0.2
    valid = np.ones(shape, bool)
    valid[1:] = ~terminated[:-1]
    return Trajectory(
        observation=rng.normal(size=(num_steps + 1, num_rows, 3)).astype(np.float32),
        is_first=np.zeros((num_steps + 1, num_rows), bool),
        action=rng.integers(0, 2, shape).astype(np.int32),
        reward=(rng.normal(size=shape) * valid).astype(np.float32),
        terminated=terminated & valid,
        truncated=np.zeros(shape, bool),
        valid=valid,
        policy_version=np.zeros(shape, np.int32),
        extras={"behavior_log_prob": np.full(shape, np.log(0.5), np.float32)},
    )


@pytest.fixture(scope="module")
def plain_updates():
    """State and metrics after ten plain updates on one device, keys folded as the learner's are."""
    agent = ppo.make_ppo(CONFIG, SPEC, NETWORK)
    update, state, metrics = jax.jit(agent.update), agent.init(jax.random.key(1)), {}
    for number in range(10):
        state, metrics = update(state, trajectory(number), jax.random.fold_in(KEY, number))
    return jax.device_get(state), jax.device_get(metrics)


@pytest.mark.parametrize(
    ("num_devices", "server"),
    [(2, 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 0), (2, 0), (4, 3)))],
)
def test_synchronous_update_is_the_plain_update(num_devices, server, plain_updates):
    agent = ppo.make_ppo(CONFIG, SPEC, NETWORK)
    devices = jax.local_devices()
    mesh = LearnerMesh(devices[:num_devices])
    update = SynchronousUpdate(agent.gradient_steps, mesh, devices[server], KEY)
    state, metrics = mesh.place_state(agent.init(jax.random.key(1))), {}
    for number in range(10):
        state, metrics = update(state, jax.device_put(trajectory(number), mesh.rows))
    expected_state, expected_metrics = plain_updates
    expected_metrics = {**expected_metrics, SKIPPED: np.float32(0.0)}
    chex.assert_trees_all_close(jax.device_get(state), expected_state, rtol=1e-4, atol=1e-6)
    chex.assert_trees_all_close(jax.device_get(metrics), expected_metrics, rtol=1e-3, atol=1e-5)
    for leaf in jax.tree.leaves((state, metrics)):
        assert leaf.devices() == {devices[server]}


def test_an_early_stop_reaches_the_server():
    agent = ppo.make_ppo(dataclasses.replace(CONFIG, target_kl=1e-9), SPEC, NETWORK)
    mesh = LearnerMesh(jax.local_devices()[:1])
    update = SynchronousUpdate(agent.gradient_steps, mesh, jax.local_devices()[0], KEY)
    first = jax.device_get(agent.init(jax.random.key(1)))
    state, metrics = update(mesh.place_state(first), jax.device_put(trajectory(0), mesh.rows))
    assert float(metrics["ppo/skipped_minibatches"]) == 4.0
    chex.assert_trees_all_equal(jax.device_get(state.params), first.params)


@pytest.mark.parametrize(("spoilt", "taken"), [("statistics", 2), ("second gradient", 1)])
def test_a_nonfinite_update_is_skipped_and_counted(spoilt, taken):
    """Each of two gradients adds one to the parameters; the end of an update adds the mean of its batch to statistics."""

    def gradient(params, prepared, step):
        is_bad = (step == 1) & (prepared.sum() < 0) if spoilt == "second gradient" else jnp.bool_(False)
        return {"w": jnp.where(is_bad, jnp.nan, -1.0), "mean": jnp.float32(0.0)}, {}

    def finish(state, progress, summary, step_metrics):
        params = progress.params | {"mean": progress.params["mean"] + summary["mean"]}
        return LearnerState(params, progress.opt_state, state.num_updates + 1, state.extra + 1.0), {}

    steps = GradientSteps(
        2,
        lambda params, extra, batch, key, num_updates: (batch, {"mean": jnp.mean(batch)}),
        gradient,
        lambda progress, grads, metrics: take_step(optax.sgd(1.0), progress, grads),
        finish,
    )
    mesh = LearnerMesh(jax.local_devices()[:1])
    update = SynchronousUpdate(steps, mesh, jax.local_devices()[0], KEY)
    params, skipped = {"w": jnp.float32(0.0), "mean": jnp.float32(0.0)}, []
    state = LearnerState(params, optax.sgd(1.0).init(params), jnp.int32(0), jnp.float32(0.0))
    for value in (1.0, -np.inf if spoilt == "statistics" else -1.0, 1.0):
        state, metrics = update(mesh.place_state(state), jax.device_put(np.full((1, 2), value, np.float32), mesh.rows))
        skipped.append(float(metrics[SKIPPED]))
    assert skipped == [0.0, 1.0, 0.0]
    # Of the second update only its finite gradients are taken.
    assert jax.device_get(state.params) == {"w": 4.0 + taken, "mean": 2.0}
    assert (int(state.num_updates), float(state.extra)) == (3, 2.0)


def test_rows_stay_on_their_devices_and_no_gradient_gathers_them():
    agent = ppo.make_ppo(CONFIG, SPEC, NETWORK)
    mesh = LearnerMesh(jax.local_devices()[:4])
    replica = Replica(agent.gradient_steps, mesh, KEY)
    state = agent.init(jax.random.key(1))
    params = replica.place(pack(state.params))
    prepared, _ = replica.prepare(params, state.extra, jax.device_put(trajectory(0), mesh.rows), 0, 0)
    for leaf in jax.tree.leaves(prepared.batch):
        assert leaf.sharding.is_equivalent_to(mesh.rows, leaf.ndim)
    text = replica._gradient.lower(params, prepared, np.int32(0)).compile().as_text()
    assert "all-reduce" in text
    assert "all-gather" not in text


def test_its_programs_compile_once():
    agent = ppo.make_ppo(CONFIG, SPEC, NETWORK)
    mesh = LearnerMesh(jax.local_devices()[:2])
    update = SynchronousUpdate(agent.gradient_steps, mesh, jax.local_devices()[0], KEY)
    state = mesh.place_state(agent.init(jax.random.key(1)))
    for number in range(3):
        state, _ = update(state, jax.device_put(trajectory(number), mesh.rows))
    programs = (update._replica.prepare, update._replica._gradient, update._server._apply, update._server._finish)
    assert [program._cache_size() for program in programs] == [1, 1, 1, 1]
