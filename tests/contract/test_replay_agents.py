"""What every algorithm of the catalogue that learns from replay keeps, and `jaxsrl.replay` relies on."""

import dataclasses
import json
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import LearnerState, Mode, ReplayAgent, ReplayConfig, Sample
from agents.catalog import AGENTS
from jaxsrl.config.serialization import from_json
from tests.contract.replaying_agents import REPLAYING, WINDOWS, agent_of, sample_for


class Learnt(NamedTuple):
    """An agent, its first state, a sample, and what an update made of them."""

    agent: ReplayAgent
    first: LearnerState
    sample: Sample
    update: object
    state: LearnerState
    metrics: dict
    priority: np.ndarray


@pytest.fixture(scope="module", params=REPLAYING)
def learnt(request) -> Learnt:
    is_prioritized = hasattr(AGENTS[request.param].config, "importance_sampling_exponent")
    replay = ReplayConfig(batch_size=WINDOWS, priority_exponent=0.6 if is_prioritized else 0.0)
    agent = agent_of(request.param, replay=replay)
    sample, first = sample_for(request.param, agent), jax.jit(agent.init)(jax.random.key(0))
    update = jax.jit(agent.update)
    state, metrics, priority = update(first, sample, jax.random.key(1))
    return Learnt(agent, first, sample, update, state, metrics, np.asarray(priority))


def test_update_changes_params_but_not_num_updates(learnt):
    assert int(learnt.state.num_updates) == int(learnt.first.num_updates)
    before, after = (
        (state.params, state.extra) for state in (learnt.first, learnt.state)
    )  # of TD3 only critics move at first
    moved = jax.tree.map(lambda a, b: bool(np.any(a != b)), before, after)
    assert any(jax.tree.leaves(moved))
    chex.assert_tree_all_finite(after)


def test_update_keeps_the_state_structure(learnt):
    chex.assert_trees_all_equal_shapes_and_dtypes(learnt.first, learnt.state)
    if learnt.agent.data.sync_acting_params is not None:
        chex.assert_trees_all_equal_shapes_and_dtypes(learnt.first, learnt.agent.data.sync_acting_params(learnt.state))


def test_metrics_are_finite_float32_scalars(learnt):
    assert learnt.metrics
    for name, value in learnt.metrics.items():
        assert (value.shape, value.dtype) == ((), jnp.float32), name
        assert np.isfinite(value), name


def test_every_window_has_a_new_priority_that_is_not_negative(learnt):
    assert (learnt.priority.shape, learnt.priority.dtype) == ((WINDOWS,), np.float32)
    assert np.isfinite(learnt.priority).all()
    assert (learnt.priority >= 0.0).all()
    assert (learnt.priority[1:] > 0.0).any()


def test_replay_update_ignores_reset_steps_bit_for_bit(learnt):
    steps, junk = learnt.sample.trajectory, ~learnt.sample.trajectory.valid
    assert junk.any()

    def spoil(values, junk_value):
        wide = junk.reshape(junk.shape + (1,) * (values.ndim - 2))
        return np.where(wide, junk_value, values).astype(values.dtype)

    spoiled = dataclasses.replace(
        steps,
        action=spoil(steps.action, 0),
        reward=spoil(steps.reward, 1e3),
        extras={name: spoil(value, -40.0) for name, value in steps.extras.items()},
    )
    other = learnt.update(learnt.first, dataclasses.replace(learnt.sample, trajectory=spoiled), jax.random.key(1))
    chex.assert_trees_all_equal(other[0], learnt.state)


def test_windows_of_reset_steps_do_not_scale_the_others(learnt):
    """Such a window soon has the least priority, so its probability is far below that of the others."""
    sample, team = learnt.sample, learnt.agent.data.agents_per_window
    valid, probability = sample.trajectory.valid.copy(), sample.probability.copy()
    valid[:, :team] = False
    sample = dataclasses.replace(sample, trajectory=dataclasses.replace(sample.trajectory, valid=valid))
    probability[0] *= 1e-4
    rare = dataclasses.replace(sample, probability=probability)
    one, other = (learnt.update(learnt.first, given, jax.random.key(1))[0] for given in (sample, rare))
    chex.assert_trees_all_equal(one, other)


def test_act_depends_on_own_key_and_adds_declared_extras(learnt):
    agent, rows = learnt.agent, 2 * learnt.agent.data.agents_per_window
    observation = jax.tree.map(lambda leaf: np.asarray(leaf[0][: 2 * rows]), learnt.sample.trajectory.observation)
    keys, state = jax.random.split(jax.random.key(2), 2 * rows), agent.initial_agent_state(2 * rows)
    is_first, act = np.ones(2 * rows, bool), jax.jit(agent.act, static_argnums=5)
    action, extras, _ = act(learnt.first.params, observation, state, is_first, keys, Mode.SAMPLE)
    assert {name: value.shape[1:] for name, value in extras.items()} == {
        name: spec.shape for name, spec in agent.extras.items()
    }
    mine = jax.tree.map(lambda leaf: leaf[rows:], state)
    one, _, _ = act(
        learnt.first.params,
        jax.tree.map(lambda leaf: leaf[rows:], observation),
        mine,
        is_first[rows:],
        keys[rows:],
        Mode.SAMPLE,
    )
    # BCQ computes many candidates a row: matrix products of other sizes round differently.
    np.testing.assert_allclose(action[rows:], one, rtol=1e-6 if agent.name == "bcq" else 0.0)


@pytest.mark.parametrize("name", REPLAYING)
def test_configuration_round_trips_through_json(name):
    config = dataclasses.replace(AGENTS[name].config(), total_updates=7)
    assert from_json(AGENTS[name].config, json.loads(json.dumps(dataclasses.asdict(config)))) == config
