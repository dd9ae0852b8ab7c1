"""What every algorithm of the catalogue that learns from trajectories keeps: the contract that all plans rely on."""

import dataclasses
import json
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Agent, LearnerState, Mode, Trajectory
from agents.catalog import AGENTS
from agents.networks.config import NetworkConfig
from agents.ops.gradient_steps import make_update
from envpool_bridge.spec.specs import AgentSpec, ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.config.serialization import from_json
from tests.contract.replaying_agents import REPLAYING

STEPS, ROWS = 8, 4
ON_POLICY = sorted(set(AGENTS) - set(REPLAYING))
OBSERVATION, ACTION = ArraySpec((3,), "float32"), DiscreteSpec(2)
ALONE = EnvSpec("test", OBSERVATION, ACTION)
TEAM = EnvSpec("test", OBSERVATION, ACTION, agents=tuple(AgentSpec(name, OBSERVATION, ACTION) for name in ("a", "b")))
NETWORK = NetworkConfig(hidden_sizes=(8,))
SIZES = {
    "ppg": {"rollout_length": STEPS, "num_rows": ROWS, "num_policy_phases": 1, "num_auxiliary_minibatches": 4}
}  # it keeps trajectories


class Learnt(NamedTuple):
    """An agent, its first state, a trajectory, and what an update made of them."""

    agent: Agent
    first: LearnerState
    data: Trajectory
    state: LearnerState
    metrics: dict


def trajectory(seed: int = 0) -> Trajectory:
    """Two environments of two rows, or four of one, whose episodes end together with their environment."""
    rng = np.random.default_rng(seed)
    ended = np.repeat(rng.random((STEPS, ROWS // 2)) < 0.25, 2, axis=1)
    ended[1:] &= ~ended[:-1]
    terminated = ended & np.repeat(rng.random((STEPS, ROWS // 2)) < 0.5, 2, axis=1)
    valid = np.concatenate([np.ones((1, ROWS), bool), ~ended[:-1]])
    return Trajectory(
        observation=rng.normal(size=(STEPS + 1, ROWS, 3)).astype(np.float32),
        is_first=np.concatenate([np.zeros((1, ROWS), bool), ~valid[1:], np.zeros((1, ROWS), bool)]),
        action=rng.integers(0, 2, (STEPS, ROWS)).astype(np.int32),
        reward=rng.normal(size=(STEPS, ROWS)).astype(np.float32),
        terminated=terminated,
        truncated=ended & ~terminated,
        valid=valid,
        policy_version=np.zeros((STEPS, ROWS), np.int32),
        extras={"behavior_log_prob": np.full((STEPS, ROWS), np.log(0.5), np.float32)},
    )


@pytest.fixture(scope="module", params=ON_POLICY)
def learnt(request) -> Learnt:
    spec = TEAM if request.param == "coma" else ALONE
    config = AGENTS[request.param].config(**SIZES.get(request.param, {}))
    agent, data = AGENTS[request.param].make(config, spec, NETWORK), trajectory()
    first = agent.init(jax.random.key(0))
    state, metrics = jax.jit(agent.update)(first, data, jax.random.key(1))
    return Learnt(agent, first, data, state, metrics)


def test_an_update_is_counted_and_moves_the_parameters(learnt):
    assert int(learnt.state.num_updates) == int(learnt.first.num_updates) + 1
    moved = jax.tree.map(lambda a, b: bool(np.any(a != b)), learnt.first.params, learnt.state.params)
    assert any(jax.tree.leaves(moved))
    chex.assert_tree_all_finite(learnt.state.params)


def test_update_preserves_state_structure(learnt):
    chex.assert_trees_all_equal_shapes_and_dtypes(learnt.first, learnt.state)


def test_metrics_are_finite_float32_scalars(learnt):
    assert learnt.metrics
    for name, value in learnt.metrics.items():
        assert (value.shape, value.dtype) == ((), jnp.float32), name
        assert np.isfinite(value), name


def test_act_depends_on_row_key_and_adds_declared_extras(learnt):
    agent, observation = learnt.agent, learnt.data.observation[0]
    keys = jax.random.split(jax.random.key(2), ROWS)
    is_first = np.ones(ROWS, bool)
    act = jax.jit(agent.act, static_argnums=5)
    action, extras, _ = act(
        learnt.first.params, observation, agent.initial_agent_state(ROWS), is_first, keys, Mode.SAMPLE
    )
    assert set(extras) == set(agent.extras)
    for name, spec in agent.extras.items():
        assert extras[name].shape == (ROWS, *spec.shape)
    one, _, _ = act(
        learnt.first.params, observation[1:3], agent.initial_agent_state(2), is_first[1:3], keys[1:3], Mode.SAMPLE
    )
    np.testing.assert_array_equal(action[1:3], one)


def test_update_ignores_reset_rows_bit_for_bit(learnt):
    data, junk = learnt.data, ~learnt.data.valid
    assert junk.any()
    spoiled = dataclasses.replace(
        data,
        action=np.where(junk, 1 - data.action, data.action).astype(np.int32),
        reward=np.where(junk, 1e3, data.reward).astype(np.float32),
        extras={"behavior_log_prob": np.where(junk, -40.0, np.log(0.5)).astype(np.float32)},
    )
    other, _ = jax.jit(learnt.agent.update)(learnt.first, spoiled, jax.random.key(1))
    chex.assert_trees_all_equal(other, learnt.state)


def test_agents_that_ignore_behavior_probabilities_declare_lag_0(learnt):
    extras = {"behavior_log_prob": learnt.data.extras["behavior_log_prob"] - 1.0}
    other, _ = jax.jit(learnt.agent.update)(
        learnt.first, dataclasses.replace(learnt.data, extras=extras), jax.random.key(1)
    )
    same = jax.tree.map(lambda a, b: bool(np.all(a == b)), other.params, learnt.state.params)
    assert all(jax.tree.leaves(same)) == (learnt.agent.data.max_lag == 0)


def test_an_update_that_is_cut_into_gradient_steps_is_the_update(learnt):
    if learnt.agent.gradient_steps is None:
        pytest.skip(f"{learnt.agent.name} is not cut")
    whole, _ = jax.jit(make_update(learnt.agent.gradient_steps))(learnt.first, learnt.data, jax.random.key(1))
    chex.assert_trees_all_close(whole, learnt.state, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ON_POLICY)
def test_agent_config_round_trips_through_json(name):
    config = dataclasses.replace(AGENTS[name].config(), discount=0.5, total_updates=7)
    assert from_json(AGENTS[name].config, json.loads(json.dumps(dataclasses.asdict(config)))) == config
