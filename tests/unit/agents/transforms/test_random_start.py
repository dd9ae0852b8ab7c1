"""Statistics of observations that start from random steps: which steps are random, and that nothing is learned from them."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents import ppg, ppo
from agents.api import Mode
from agents.networks.config import NetworkConfig
from agents.transforms.normalization import NormalizationConfig
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.learner.parameter_server.synchronous import SynchronousUpdate
from tests.unit.agents.transforms.test_normalization import (
    BOTH,
    KEY,
    NETWORK,
    PLACE,
    ROWS,
    SPEC,
    STEPS,
    moments,
    trajectory,
)

OF_OBSERVATIONS = NormalizationConfig(observations=True)
PPG = ppg.PPGConfig(
    rollout_length=STEPS,
    num_rows=ROWS,
    num_minibatches=2,
    num_policy_phases=2,
    num_auxiliary_epochs=1,
    num_auxiliary_minibatches=2,
    normalization=OF_OBSERVATIONS,
)


def make(config):
    if isinstance(config, ppg.PPGConfig):
        return ppg.make_ppg(config, SPEC, NetworkConfig(hidden_sizes=(8,), shared_torso=False))
    return ppo.make_ppo(config, SPEC, NETWORK)


def on_one_device(agent):
    update = jax.jit(agent.update)
    return lambda state, batch: update(state, batch, KEY)


def on_a_server(agent):
    mesh = LearnerMesh(jax.local_devices()[:1])
    update = SynchronousUpdate(agent.gradient_steps, mesh, jax.local_devices()[1], KEY)
    return lambda state, batch: jax.device_get(update(mesh.place_state(state), jax.device_put(batch, mesh.rows)))


def of_version(number, data):
    return dataclasses.replace(data, policy_version=np.full((STEPS, ROWS), number, np.int32))


def seen(*batches):
    return np.concatenate([batch.observation["place"][0][:-1][batch.valid] for batch in batches]).astype(np.float64)


def assert_statistics(state, *batches):
    mean, variance = moments(state)
    np.testing.assert_allclose(mean, seen(*batches).mean(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(variance, seen(*batches).var(0), rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "learner"),
    [
        (BOTH, on_one_device),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((BOTH, on_a_server), (PPG, on_one_device))),
    ],
    ids=["ppo", "server", "ppg"],
)
def test_updates_from_version_0_change_statistics_only(config, learner):
    agent = make(config)
    update, first = learner(agent), jax.device_get(jax.jit(agent.init)(jax.random.key(1)))
    # The second was acted by version 0 as well, as it is at policy lag 1: by then there are statistics.
    batches = [of_version(0, trajectory(0)), of_version(0, trajectory(1)), of_version(1, trajectory(2))]
    states, found = [first], []
    for batch in batches:
        state, metrics = update(states[-1], batch)
        states.append(jax.device_get(state))
        found.append(float(metrics["normalization/random_fraction"]))
    for number in (1, 2):
        assert_statistics(states[number], *batches[:number])
        chex.assert_trees_all_equal(states[number].params["agent"], first.params["agent"])
        chex.assert_trees_all_equal(states[number].opt_state, first.opt_state)
    assert [int(state.num_updates) for state in states] == [0, 1, 2, 3]
    assert found == [1.0, 1.0, 0.0]
    assert_statistics(states[3], *batches)
    pairs = zip(*map(jax.tree.leaves, (states[3].params["agent"], first.params["agent"])), strict=True)
    assert any(np.any(one != other) for one, other in pairs)


def act(agent, params, observation):
    keys = jax.random.split(jax.random.key(3), ROWS)
    return jax.device_get(agent.act(params, observation, agent.initial_agent_state(ROWS), None, keys, Mode.SAMPLE))


def test_without_statistics_actions_are_random_among_the_legal():
    agent = make(BOTH)
    params = jax.jit(agent.init)(jax.random.key(1)).params
    one, other = (jax.tree.map(lambda leaf: leaf[0], trajectory(seed).observation) for seed in (0, 1))
    one = {**one, "image": other["image"], "legal": np.tile(np.float32([1, 0, 1]), (ROWS, 1))}
    other = {**other, "legal": one["legal"]}
    (actions, extras, _), (same, _, _) = act(agent, params, one), act(agent, params, other)
    np.testing.assert_array_equal(actions, same)
    assert set(actions) <= {0, 2}
    # The images are inputs as well, and the last layer's weights are small: nearly even odds.
    np.testing.assert_allclose(extras["behavior_log_prob"], np.log(0.5), atol=0.05)


def test_the_first_counted_steps_have_a_ratio_of_one():
    """At policy lag 0: the ratio is 1 at the first gradient step of the first update that takes any."""
    agent = make(BOTH)
    state, _ = jax.jit(agent.update)(jax.jit(agent.init)(jax.random.key(1)), trajectory(0), KEY)
    data, chosen, recorded = trajectory(1), [], []
    for t in range(STEPS):
        action, extras, _ = act(agent, state.params, jax.tree.map(lambda leaf, t=t: leaf[t], data.observation))
        chosen.append(action)
        recorded.append(extras["behavior_log_prob"])
    data = dataclasses.replace(data, action=np.stack(chosen), extras={"behavior_log_prob": np.stack(recorded)})
    steps = agent.gradient_steps
    prepared, _ = steps.prepare(state.params, state.extra, data, KEY, 0)
    _, metrics = jax.jit(steps.gradient)(state.params, prepared, jnp.int32(0))
    assert float(metrics["policy/approx_kl"]) == pytest.approx(0.0, abs=1e-9)
    assert float(metrics["policy/clip_fraction"]) == 0.0
    assert float(metrics["gradient/norm"]) > 0.0


def test_steps_of_version_0_do_not_count():
    agent = make(dataclasses.replace(BOTH, normalization=OF_OBSERVATIONS))
    update = jax.jit(agent.update)
    state, _ = update(jax.jit(agent.init)(jax.random.key(1)), trajectory(0), KEY)
    version = np.repeat(np.arange(STEPS) // 2, ROWS).reshape(STEPS, ROWS).astype(np.int32)
    data = dataclasses.replace(trajectory(1), policy_version=version)
    spoiled = dataclasses.replace(data, reward=np.where(version == 0, 1e3, data.reward).astype(np.float32))
    (one, metrics), (other, _) = update(state, data, KEY), update(state, spoiled, KEY)
    chex.assert_trees_all_equal(one.params, other.params)
    random = data.valid[:2].sum() / data.valid.sum()
    assert float(metrics["normalization/random_fraction"]) == pytest.approx(random)


def test_it_can_be_off_and_is_off_where_only_rewards_are_scaled():
    for options in ({"observations": True, "random_start": False}, {"rewards": True}):
        agent = make(dataclasses.replace(BOTH, normalization=NormalizationConfig(**options)))
        first = jax.jit(agent.init)(jax.random.key(1))
        state, metrics = jax.jit(agent.update)(first, trajectory(0), KEY)
        pairs = zip(*map(jax.tree.leaves, (state.params["agent"], first.params["agent"])), strict=True)
        assert any(np.any(one != other) for one, other in pairs)
        assert float(metrics["normalization/random_fraction"]) == 0.0
        assert sorted(state.params["statistics"]) == [PLACE if "observations" in options else "return"]
