"""The parameter server in lockstep against the plain update, on several devices."""

import dataclasses

import chex
import jax
import numpy as np
import pytest

from agents import ppo
from agents.api import Trajectory
from agents.networks.config import NetworkConfig
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
