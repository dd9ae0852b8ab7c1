"""Normalization around PPO: what the agent sees, what gradients touch, and one result wherever gradients are computed."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents import ppo
from agents.api import Mode, Trajectory
from agents.networks.config import NetworkConfig
from agents.ops.gradient_steps import make_update
from agents.ops.running_moments import RunningMoments
from agents.transforms.normalization import NormalizationConfig, with_normalization
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.config.serialization import from_json, to_json
from jaxsrl.learner.finite_updates import SKIPPED
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.learner.parameter_server.async_replica import AsynchronousReplica
from jaxsrl.learner.parameter_server.async_server import ParameterServer
from jaxsrl.learner.parameter_server.synchronous import SynchronousUpdate

OBSERVATION = {
    "image": ArraySpec((2, 1, 1), "uint8"),
    "legal": ArraySpec((3,), "float32"),
    "place": (ArraySpec((3,), "float32"),),
}
SPEC = EnvSpec("test", OBSERVATION, DiscreteSpec(3), action_mask=("legal",))
NETWORK = NetworkConfig(hidden_sizes=(8,))
PLAIN = ppo.PPOConfig(learning_rate=1e-2, num_epochs=2, num_minibatches=2)
BOTH = dataclasses.replace(PLAIN, normalization=NormalizationConfig(observations=True, rewards=True, clip_reward=0.3))
KEY = jax.random.key(5)
STEPS, ROWS, UPDATES = 8, 8, 4
PLACE = "observation['place'][0]"


def trajectory(seed) -> Trajectory:
    rng = np.random.default_rng(seed)
    shape = (STEPS, ROWS)
    ended = rng.random(shape) < 0.1
    valid = np.ones(shape, bool)
    valid[1:] = ~ended[:-1]
    ended &= valid
    return Trajectory(
        observation={
            "image": rng.integers(0, 255, (STEPS + 1, ROWS, 2, 1, 1)).astype(np.uint8),
            "legal": np.ones((STEPS + 1, ROWS, 3), np.float32),
            "place": (rng.normal((50.0, 0.0, -3.0), (5.0, 1e-3, 1.0), (STEPS + 1, ROWS, 3)).astype(np.float32),),
        },
        is_first=np.concatenate([np.full((1, ROWS), seed == 0), ~valid]),
        action=rng.integers(0, 3, shape).astype(np.int32),
        reward=np.where(valid, rng.normal(20.0, 30.0, shape), 0.0).astype(np.float32),
        terminated=ended,
        truncated=np.zeros(shape, bool),
        valid=valid,
        policy_version=np.full(shape, seed, np.int32),
        extras={"behavior_log_prob": np.full(shape, -np.log(3.0), np.float32)},
    )


def normalized(place, mean, variance):
    return np.clip((place - mean) / np.sqrt(variance + 1e-8), -10.0, 10.0).astype(np.float32)


@pytest.fixture(scope="module")
def updated():
    """(states before and after each plain update, metrics of the last)."""
    agent = ppo.make_ppo(BOTH, SPEC, NETWORK)
    update, states, metrics = jax.jit(agent.update), [jax.jit(agent.init)(jax.random.key(1))], {}
    for number in range(UPDATES):
        state, metrics = update(states[-1], trajectory(number), jax.random.fold_in(KEY, number))
        states.append(state)
    return jax.device_get(states), jax.device_get(metrics)


def moments(state):
    running = state.params["statistics"][PLACE]
    return [np.asarray(pair, np.float64).sum(0) for pair in (running.mean, running.variance)]


def summed(state):
    """The state with every pair of running moments as the one number that it stands for."""

    def sums(node):
        if not isinstance(node, RunningMoments):
            return node
        return {field.name: np.asarray(getattr(node, field.name)).sum(0) for field in dataclasses.fields(node)}

    return jax.tree.map(sums, jax.device_get(state), is_leaf=lambda node: isinstance(node, RunningMoments))


def test_normalization_off_returns_the_agent():
    state = jax.eval_shape(ppo.make_ppo(PLAIN, SPEC, NETWORK).init, KEY)
    assert sorted(state.params) == ["actor", "critic"]


def test_statistics_are_of_the_float_leaves_that_were_acted_on(updated):
    states, _ = updated
    assert sorted(states[0].params["statistics"]) == [PLACE, "return"]
    seen = []
    for number in range(UPDATES):
        data = trajectory(number)
        seen.append(data.observation["place"][0][:-1][data.valid])
    seen = np.concatenate(seen).astype(np.float64)
    mean, variance = moments(states[-1])
    np.testing.assert_allclose(mean, seen.mean(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(variance, seen.var(0), rtol=1e-4)


def test_acting_normalizes_with_the_statistics_in_the_parameters(updated):
    states, _ = updated
    state, data = states[2], trajectory(2)
    observation = jax.tree.map(lambda leaf: leaf[0], data.observation)
    keys = jax.random.split(jax.random.key(3), ROWS)
    by_hand = {**observation, "place": (normalized(observation["place"][0], *moments(state)),)}
    outer, inner = ppo.make_ppo(BOTH, SPEC, NETWORK), ppo.make_ppo(PLAIN, SPEC, NETWORK)
    for mode in Mode:
        got = outer.act(state.params, observation, (), None, keys, mode)
        expected = inner.act(state.params["agent"], by_hand, (), None, keys, mode)
        chex.assert_trees_all_close(got, expected, rtol=1e-5)
    assert np.abs(by_hand["place"][0]).max() < 10.0


def test_rewards_use_the_newer_statistics_than_observations(updated):
    states, _ = updated
    before, after, data = states[1], states[2], trajectory(1)
    mean, variance = moments(before)
    running = after.params["statistics"]["return"].running
    scale = np.sqrt(np.asarray(running.variance, np.float64).sum() + 1e-8)
    assert 0.1 < np.mean(np.abs(data.reward / scale) > 0.3) < 0.9
    by_hand = dataclasses.replace(
        data,
        observation={**data.observation, "place": (normalized(data.observation["place"][0], mean, variance),)},
        reward=np.clip(data.reward / scale, -0.3, 0.3).astype(np.float32),
    )
    inner = ppo.make_ppo(PLAIN, SPEC, NETWORK)
    state = dataclasses.replace(before, params=before.params["agent"])
    expected, _ = jax.jit(inner.update)(state, by_hand, jax.random.fold_in(KEY, 1))
    chex.assert_trees_all_close(after.params["agent"], jax.device_get(expected.params), rtol=1e-4, atol=1e-6)
    chex.assert_trees_all_close(after.opt_state, jax.device_get(expected.opt_state), rtol=1e-3, atol=1e-6)


def test_far_values_are_clipped():
    config = dataclasses.replace(
        PLAIN, normalization=NormalizationConfig(True, clip_observation=0.5, random_start=False)
    )
    agent, seen = ppo.make_ppo(config, SPEC, NETWORK), {}

    def spy(params, observation, agent_state, is_first, keys, mode):
        seen["observation"] = observation
        return observation, {}, agent_state

    spied = with_normalization(
        agent._replace(act=spy, init=ppo.make_ppo(PLAIN, SPEC, NETWORK).init), config.normalization, SPEC, 0.99
    )
    observation = jax.tree.map(lambda leaf: leaf[0], trajectory(0).observation)
    spied.act(spied.init(KEY).params, observation, (), None, None, Mode.GREEDY)
    place = np.asarray(seen["observation"]["place"][0])
    np.testing.assert_allclose(place, np.clip(observation["place"][0], -0.5, 0.5))
    for name in ("image", "legal"):
        assert seen["observation"][name] is observation[name]


@pytest.mark.slow  # to compile
def test_statistics_have_no_gradient_and_no_optimizer_state(updated):
    states, _ = updated
    agent = ppo.make_ppo(BOTH, SPEC, NETWORK)
    steps = agent.gradient_steps
    params = states[1].params
    prepared, _ = steps.prepare(params, states[1].extra, trajectory(1), KEY, 0)
    grads, _ = jax.jit(steps.gradient)(params, prepared, np.int32(0))
    assert jax.tree.structure(grads) == jax.tree.structure(params["agent"])
    plain = jax.eval_shape(ppo.make_ppo(PLAIN, SPEC, NETWORK).init, KEY)
    assert jax.tree.structure(states[1].opt_state) == jax.tree.structure(plain.opt_state)


def test_composed_of_its_gradient_steps_it_is_the_update(updated):
    states, metrics = updated
    steps = ppo.make_ppo(BOTH, SPEC, NETWORK).gradient_steps
    composed = jax.jit(make_update(steps))
    state, got = composed(states[-2], trajectory(UPDATES - 1), jax.random.fold_in(KEY, UPDATES - 1))
    chex.assert_trees_all_close(summed(state), summed(states[-1]), rtol=1e-4, atol=1e-6)
    chex.assert_trees_all_close(jax.device_get(got), metrics, rtol=1e-3, atol=1e-5)
    assert all(value.shape == () and value.dtype == np.float32 for value in jax.tree.leaves(got))
    assert "normalization/reward_scale" in got


def test_normalization_over_four_devices_has_no_gather(updated):
    states, _ = updated
    agent, mesh = ppo.make_ppo(BOTH, SPEC, NETWORK), LearnerMesh(jax.local_devices()[:4])
    update, state = mesh.jit_update(agent, KEY), mesh.place_state(states[0])
    update = update.lower(state, jax.device_put(trajectory(0), mesh.rows)).compile()
    assert "all-gather" not in update.as_text()
    for number in range(UPDATES):
        state, _ = update(state, jax.device_put(trajectory(number), mesh.rows))
    chex.assert_trees_all_close(summed(state), summed(states[-1]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("num_devices", "server"), [(4, 2), pytest.param(1, 0, marks=pytest.mark.slow)])
def test_a_parameter_server_in_lockstep_ends_with_the_same_state(num_devices, server, updated):
    states, expected_metrics = updated
    agent, devices = ppo.make_ppo(BOTH, SPEC, NETWORK), jax.local_devices()
    mesh = LearnerMesh(devices[:num_devices])
    update = SynchronousUpdate(agent.gradient_steps, mesh, devices[server], KEY)
    state, metrics = mesh.place_state(states[0]), {}
    for number in range(UPDATES):
        state, metrics = update(state, jax.device_put(trajectory(number), mesh.rows))
    chex.assert_trees_all_close(summed(state), summed(states[-1]), rtol=1e-4, atol=1e-5)
    expected_metrics = {**expected_metrics, SKIPPED: np.float32(0.0)}
    chex.assert_trees_all_close(jax.device_get(metrics), expected_metrics, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_replicas_at_their_own_pace_all_add_to_the_statistics():
    agent, device = ppo.make_ppo(BOTH, SPEC, NETWORK), jax.local_devices()[0]
    mesh = LearnerMesh([device])
    server = ParameterServer(agent.gradient_steps, jax.jit(agent.init)(jax.random.key(1)), device, 2, max_staleness=8)
    replicas = [AsynchronousReplica(agent.gradient_steps, mesh, server, number, KEY) for number in range(2)]
    for number in (0, 1, 0):
        replicas[number].update(jax.device_put(trajectory(number), mesh.rows), lambda: False)
    data = [trajectory(number) for number in (0, 1, 0)]
    seen = np.concatenate([one.observation["place"][0][:-1][one.valid] for one in data]).astype(np.float64)
    state = jax.device_get(server.state())
    mean, variance = moments(state)
    np.testing.assert_allclose(mean, seen.mean(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(variance, seen.var(0), rtol=1e-4)
    assert state.params["statistics"]["return"].running.count.sum() == len(seen)


@pytest.mark.parametrize("which", ["observations", "rewards"])
def test_observations_and_rewards_normalize_separately(which):
    config = dataclasses.replace(PLAIN, normalization=NormalizationConfig(**{which: True}))
    agent = ppo.make_ppo(config, SPEC, NETWORK)
    state, _ = jax.jit(agent.update)(jax.jit(agent.init)(KEY), trajectory(0), KEY)
    assert list(state.params["statistics"]) == ([PLACE] if which == "observations" else ["return"])
    place = np.full((1, 3), 7.0, np.float32)
    plain = ppo.make_ppo(PLAIN, SPEC, NETWORK)
    observation = {"image": jnp.zeros((1, 2, 1, 1)), "legal": jnp.ones((1, 3)), "place": (place,)}
    keys = jax.random.split(KEY, 1)
    got = agent.act(state.params, observation, (), None, keys, Mode.SAMPLE)[1]["behavior_log_prob"]
    raw = plain.act(state.params["agent"], observation, (), None, keys, Mode.SAMPLE)[1]["behavior_log_prob"]
    assert bool((got == raw).all()) == (which == "rewards")


def test_one_array_is_normalized_and_no_numbers_are_rejected():
    spec = EnvSpec("walker", ArraySpec((3,), "float32"), DiscreteSpec(2))
    params = jax.eval_shape(ppo.make_ppo(BOTH, spec, NETWORK).init, KEY).params
    assert params["statistics"]["observation"].mean.shape == (2, 3)
    images = EnvSpec("atari", ArraySpec((4, 36, 36), "uint8"), DiscreteSpec(2))
    with pytest.raises(UserError, match="atari: observations are to be normalized, but their leaves are images"):
        ppo.make_ppo(BOTH, images, NETWORK)


@pytest.mark.parametrize("name", ["clip_observation", "clip_reward", "epsilon"])
def test_settings_out_of_range_are_rejected(name):
    with pytest.raises(UserError, match=f"normalization.{name} must be positive: got 0.0"):
        NormalizationConfig(**{name: 0.0})


def test_normalization_config_loads_from_checkpoint():
    assert from_json(ppo.PPOConfig, to_json(BOTH)) == BOTH
    with pytest.raises(UserError, match="NormalizationConfig has no field strength"):
        from_json(ppo.PPOConfig, {"normalization": {"strength": 1}})
