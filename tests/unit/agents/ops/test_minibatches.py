"""Minibatches of rows: against numpy, on several devices, and with backpropagation through a whole trajectory."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.config import NetworkConfig
from agents.ops.minibatches import shuffled_minibatches, shuffled_row_minibatches, take_rows
from agents.ppg import PPGConfig, make_ppg
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.errors import UserError
from jaxsrl.learner.mesh import LearnerMesh
from tests.unit.agents.test_ppo import NETWORK, ROWS, SPEC, STEPS, trajectory

CONFIG = PPOConfig(num_epochs=2, num_minibatches=2, minibatch_axis="rows")


def test_shuffled_rows_give_one_of_each_group_to_a_minibatch():
    order = np.asarray(shuffled_row_minibatches(jax.random.key(0), num_rows=48, num_epochs=3, num_minibatches=4))
    assert order.shape == (12, 12)
    epochs = order.reshape(3, 4, 12)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(np.arange(4)[:, None], (3, 1, 12)))
    assert len({tuple(group) for group in epochs[0].T}) > 3  # groups have permutations of their own
    assert not np.array_equal(epochs[0], epochs[1])


def test_take_rows_equals_a_loop_and_an_epoch_visits_each_row():
    order = np.asarray(shuffled_row_minibatches(jax.random.key(1), 12, num_epochs=1, num_minibatches=3))
    data = {"a": np.arange(24).reshape(2, 12), "b": np.random.default_rng(0).normal(size=(5, 12, 2))}
    visited = []
    for chosen in order:
        rows = [3 * group + member for group, member in enumerate(chosen)]
        got = take_rows(data, jnp.asarray(chosen), 3)
        for name, leaf in data.items():
            np.testing.assert_array_equal(got[name], leaf[:, rows].astype(got[name].dtype))
        visited += rows
    assert sorted(visited) == list(range(12))


def test_minibatch_errors_name_the_other_axis():
    with pytest.raises(UserError, match=r"rollout_length: got 3 and 8; .*; minibatch_axis='rows' cuts"):
        shuffled_minibatches(jax.random.key(0), 8, 1, 3)
    with pytest.raises(UserError, match=r"rows \(num_envs\): got 3 and 8; .*; minibatch_axis='time' cuts"):
        shuffled_row_minibatches(jax.random.key(0), 8, 1, 3)
    with pytest.raises(UserError, match="num_envs"):
        make_ppg(PPGConfig(num_rows=12, minibatch_axis="rows"), SPEC, NETWORK)
    make_ppg(PPGConfig(rollout_length=16, num_minibatches=32, minibatch_axis="rows"), SPEC, NETWORK)


def test_ppo_minibatches_of_rows_do_not_depend_on_devices():
    agent, states = make_ppo(CONFIG, SPEC, NETWORK), []
    data = trajectory(0)
    assert ROWS % 8 == 0
    for count in (1, 4):
        mesh = LearnerMesh(jax.local_devices()[:count])
        update = mesh.jit_update(agent, jax.random.key(5))
        state, batch = mesh.place_state(agent.init(jax.random.key(1))), jax.device_put(data, mesh.rows)
        if count == 4:
            text = update.lower(state, batch).compile().as_text()
            assert "all-reduce" in text
            assert all(name not in text for name in ("all-gather", "all-to-all", "collective-permute"))
        states.append(jax.device_get(update(state, batch)[0]))
    chex.assert_trees_all_close(states[0].params, states[1].params, rtol=1e-5, atol=1e-6)


def test_recurrent_ppo_of_rows_learns_through_the_trajectory():
    network = NetworkConfig(hidden_sizes=(8,), core="gru", core_size=4)
    data, states = trajectory(0), {}
    for axis, chunk in (("rows", None), ("time", None), ("time", STEPS // 2)):
        config = PPOConfig(num_epochs=1, num_minibatches=1, minibatch_axis=axis, chunk_length=chunk)
        agent = make_ppo(config, SPEC, network)
        batch = dataclasses.replace(data, agent_state=agent.initial_agent_state(ROWS))
        states[axis, chunk], _ = jax.jit(agent.update)(agent.init(jax.random.key(1)), batch, jax.random.key(0))
    whole = states["time", None].params
    chex.assert_trees_all_close(states["rows", None].params, whole, rtol=1e-5, atol=1e-6)
    cut = zip(*map(jax.tree.leaves, (states["time", STEPS // 2].params, whole)), strict=True)
    assert any(np.abs(one - other).max() > 1e-4 for one, other in cut)


def test_a_network_with_memory_has_minibatches_of_rows():
    network = NetworkConfig(hidden_sizes=(8,), core="gru", core_size=4)
    data, states = trajectory(0), []
    for changes in ({}, {"chunk_length": STEPS}, {"minibatch_axis": "rows"}):
        agent = make_ppo(PPOConfig(num_epochs=2, num_minibatches=2, **changes), SPEC, network)
        batch = dataclasses.replace(data, agent_state=agent.initial_agent_state(ROWS))
        states.append(jax.jit(agent.update)(agent.init(jax.random.key(1)), batch, jax.random.key(0))[0])
    chex.assert_trees_all_equal(*states)
