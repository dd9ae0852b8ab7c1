"""Mixers: the sum is a sum, the monotone one what a loop computes and never falling, and who is not there has no part."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.config import NetworkConfig
from agents.networks.mixer import make_monotone_mixer, make_sum_mixer, monotone
from agents.networks.team_state import make_team_state, memoryless_config
from envpool_bridge.spec.specs import AgentSpec, ArraySpec, DiscreteSpec, EnvSpec

ENVS, TEAM, STEPS, SIZE = 5, 3, 4, 2
ROWS = ENVS * TEAM
NETWORK = NetworkConfig(hidden_sizes=(8,))


def team(observation, critic_only=()) -> EnvSpec:
    action = DiscreteSpec(2)
    agents = tuple(AgentSpec(f"agent_{place}", observation, action) for place in range(TEAM))
    return EnvSpec("team", observation, action, agents=agents, critic_only=critic_only)


LOCAL = team(ArraySpec((2,), "float32"))
GLOBAL = team({"observation": ArraySpec((2,), "float32"), "state": ArraySpec((3,), "float32")}, ("state",))


def observations(spec, seed=0):
    rng = np.random.default_rng(seed)
    leaves = {name: rng.normal(size=(STEPS, ROWS, size)).astype(np.float32) for name, size in SIZES.items()}
    return leaves if spec is GLOBAL else leaves["observation"]


SIZES = {"observation": 2, "state": 3}


def test_the_sum_mixer_is_the_sum():
    values = np.random.default_rng(0).integers(-9, 9, (STEPS, ENVS, TEAM)).astype(np.float32)
    mixer = make_sum_mixer()
    assert mixer.init(jax.random.key(0)) == {}
    np.testing.assert_array_equal(mixer.mix({}, jnp.asarray(values), None, None), values.sum(-1))


def test_the_monotone_mixture_is_that_of_a_loop():
    rng = np.random.default_rng(1)
    values, first, bias, second, last = (
        rng.normal(size=(STEPS, ENVS, size)).astype(np.float32) for size in (TEAM, TEAM * SIZE, SIZE, SIZE, 1)
    )
    expected = np.zeros((STEPS, ENVS))
    for t, env in np.ndindex(STEPS, ENVS):
        expected[t, env] = last[t, env, 0]
        for unit in range(SIZE):
            total = bias[t, env, unit]
            for place in range(TEAM):
                total += abs(first[t, env, place * SIZE + unit]) * values[t, env, place]
            expected[t, env] += abs(second[t, env, unit]) * (total if total > 0 else np.exp(total) - 1)
    np.testing.assert_allclose(monotone(values, first, bias, second, last), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("spec", [LOCAL, GLOBAL], ids=["observations", "state"])
def test_the_team_value_never_falls_where_an_agents_value_rises(spec):
    mixer, present = make_monotone_mixer(NETWORK, spec, SIZE), jnp.ones((STEPS, ROWS), bool)
    shapes = jax.eval_shape(mixer.init, jax.random.key(0))

    @jax.jit
    def slopes(key):
        params = jax.tree.map(lambda leaf: jax.random.normal(jax.random.fold_in(key, leaf.size), leaf.shape), shapes)
        values = 3.0 * jax.random.normal(key, (STEPS, ENVS, TEAM))
        return jax.grad(lambda values: mixer.mix(params, values, observations(spec), present).sum())(values)

    found = np.stack([slopes(key) for key in jax.random.split(jax.random.key(0), 20)])
    assert found.min() >= 0.0
    assert (found > 1e-3).mean() > 0.5
    assert found.std(axis=1).mean() > 0.1  # how much an agent counts depends on the state


@pytest.mark.parametrize("spec", [LOCAL, GLOBAL], ids=["observations", "state"])
def test_team_state_ignores_absent_agents(spec):
    mixer, seen = make_monotone_mixer(NETWORK, spec, SIZE), observations(spec)
    present = np.ones((STEPS, ROWS), bool)
    present[1, 0] = present[2, 4] = present[2, 3] = False
    values = np.random.default_rng(2).normal(size=(STEPS, ENVS, TEAM)).astype(np.float32)
    if spec is GLOBAL:  # all rows of an environment hold its state
        seen["state"] = np.repeat(seen["state"][:, ::TEAM], TEAM, axis=1)
    junk = jax.tree.map(lambda leaf: np.where(present[..., None], leaf, 1e6).astype(np.float32), seen)
    params, mix = jax.jit(mixer.init)(jax.random.key(0)), jax.jit(mixer.mix)
    np.testing.assert_array_equal(mix(params, values, junk, present), mix(params, values, seen, present))
    others = jax.tree.map(lambda leaf: leaf + 1.0, seen)
    assert (mix(params, values, others, present) != mix(params, values, seen, present)).all()


def test_a_view_of_the_team_is_that_of_a_loop():
    seen, rng = observations(GLOBAL), np.random.default_rng(3)
    present = rng.random((STEPS, ROWS)) < 0.6
    found = make_team_state(GLOBAL, "mlp", always_observations=True).view(seen, jnp.asarray(present))
    for t, env in np.ndindex(STEPS, ENVS):
        rows = range(env * TEAM, (env + 1) * TEAM)
        there = [row for row in rows if present[t, row]]
        if there:
            np.testing.assert_array_equal(found["state"][t, env], seen["state"][t, there[0]])
        for place, row in enumerate(rows):
            expected = seen["observation"][t, row] * present[t, row]
            np.testing.assert_array_equal(found["team"][place]["observation"][t, env], expected)


def test_team_state_has_only_requested_parts_and_no_masks():
    mask = ArraySpec((2,), "int8")
    spec = team({**GLOBAL.observation, "mask": mask}, ("state",))
    spec = EnvSpec(
        spec.env_id, spec.observation, spec.action, agents=spec.agents, critic_only=("state",), action_mask=("mask",)
    )
    assert set(make_team_state(spec, "mlp", always_observations=False).spec.observation) == {"state"}
    both = make_team_state(spec, "mlp", always_observations=True).spec.observation
    assert [set(own) for own in both["team"]] == [{"observation"}] * TEAM


def test_a_state_without_images_is_seen_through_dense_layers():
    image = ArraySpec((8, 8, 1), "uint8")
    config = NetworkConfig(torso="impala_resnet", core="gru")
    vector = EnvSpec("e", {"state": ArraySpec((3,), "float32")}, DiscreteSpec(2))
    pixels = EnvSpec("e", {"state": image}, DiscreteSpec(2))
    assert (memoryless_config(config, vector).torso, memoryless_config(config, vector).core) == ("mlp", "none")
    assert memoryless_config(config, pixels).torso == "impala_resnet"
    spec = team({"image": image, "state": ArraySpec((3,), "float32")}, ("state",))
    assert jax.eval_shape(make_monotone_mixer(config, spec, SIZE).init, jax.random.key(0))
