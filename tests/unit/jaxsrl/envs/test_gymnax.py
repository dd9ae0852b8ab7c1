"""The gymnax adapter against gymnax's own step; skipped where gymnax is not installed."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

gymnax = pytest.importorskip("gymnax", reason="gymnax is not installed: pip install 'jaxsrl[gymnax]'")

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.protocol import EpisodeReset, FirstRows, StepRows
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec
from jaxsrl.envs.cartpole import CartPole
from jaxsrl.envs.protocol import validate_env
from jaxsrl.envs.registry import make_env, make_jax_env


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Catch-bsuite", "FrozenLake-misc"])
def test_steps_and_ends_are_gymnaxs_own(env_id):
    env, params = gymnax.make(env_id)
    ours = make_jax_env(EnvConfig(env_id, "gymnax"))
    spec = validate_env(ours)
    state, observation = ours.reset(jax.random.key(1))
    np.testing.assert_array_equal(observation, env.reset(jax.random.key(1), params)[0])
    step = jax.jit(ours.step)
    ends = 0
    for k in range(205):
        key = jax.random.key(100 + k)
        if isinstance(spec.action, DiscreteSpec):
            action = jax.random.randint(key, (), 0, spec.action.num_values, jnp.int32)
        else:
            action = jax.random.uniform(key, spec.action.shape, jnp.float32, -1, 1)
        next_state = env.step(key, state, action, params)[1]  # after its own reset, with the other half of the key
        _, _, reward, terminated, truncated, info = env.step(key, state, action, params)
        got = step(state, action, jax.random.split(key)[0])
        np.testing.assert_allclose(got.observation, info["final_observation"], rtol=1e-5, atol=1e-6)
        assert (float(got.reward), bool(got.terminated), bool(got.truncated)) == (
            pytest.approx(float(reward)),
            bool(terminated),
            bool(truncated),
        )
        ends += bool(terminated | truncated)
        state = next_state
    assert ends >= 1


def test_its_cartpole_is_ours():
    theirs, ours = make_jax_env(EnvConfig("CartPole-v1", "gymnax")), CartPole()
    state, first = theirs.reset(jax.random.key(0))
    own, step, own_step, key = (
        ours.reset(jax.random.key(0))[0],
        jax.jit(theirs.step),
        jax.jit(ours.step),
        jax.random.key(9),
    )
    own = own._replace(physics=first)
    for action in [0, 1, 1, 0, 1, 0, 0, 0, 1, 0]:
        a, b = step(state, jnp.int32(action), key), own_step(own, jnp.int32(action), key)
        np.testing.assert_allclose(a.observation, b.observation, rtol=1e-4, atol=1e-6)
        assert float(a.reward) == float(b.reward) == 1.0
        state, own = a.state, b.state


def test_parameters_and_constructor_arguments_are_told_apart():
    short = make_jax_env(EnvConfig("CartPole-v1", "gymnax", '{"max_steps_in_episode": 2}'))
    state, _ = short.reset(jax.random.key(0))
    ends = []
    for _ in range(2):
        state, _, _, terminated, truncated = short.step(state, jnp.int32(0), jax.random.key(0))
        ends.append((bool(terminated), bool(truncated)))
    assert ends == [(False, False), (False, True)]
    assert make_jax_env(EnvConfig("DeepSea-bsuite", "gymnax", '{"size": 5}')).spec().observation.shape == (5, 5)
    with pytest.raises(UserError, match="bad kwargs"):
        make_jax_env(EnvConfig("CartPole-v1", "gymnax", '{"colour": 1}'))
    with pytest.raises(UserError, match="unknown environment 'Cartpole' of suite 'gymnax': did you mean .*CartPole-v1"):
        make_jax_env(EnvConfig("Cartpole", "gymnax"))


def test_specs_are_what_is_returned():
    assert make_jax_env(EnvConfig("Catch-bsuite", "gymnax")).spec().observation == ArraySpec((10, 5), "float32")
    assert validate_env(make_jax_env(EnvConfig("FourRooms-misc", "gymnax"))).observation.dtype == "int32"
    assert make_jax_env(EnvConfig("FrozenLake-misc", "gymnax")).spec().observation.num_values == 16
    pendulum = make_jax_env(EnvConfig("Pendulum-v1", "gymnax")).spec()
    assert pendulum.action == ArraySpec((1,), "float32", -2.0, 2.0)


def test_it_steps_in_the_pools_rows():
    source = pickle.loads(pickle.dumps(make_env(EnvConfig("Catch-bsuite", "gymnax"))))
    rows = source.make_rows(range(3), 4, False)
    flags = [np.zeros(3, bool) for _ in range(4)]
    out = StepRows(np.zeros((3, 10, 5), np.float32), flags[0], np.zeros(3, np.float32), *flags[1:])
    rows.reset(EpisodeReset((0,) * 3, (None,) * 3), FirstRows(out.observation, out.is_first))
    rewards = []
    for k in range(40):
        rows.step(np.full(3, k % 3, np.int32), out)
        rewards.append(out.reward.copy())
        np.testing.assert_array_equal(out.is_first, k % 10 == 9)  # nine steps a ball, then one that resets
        np.testing.assert_array_equal(out.terminated, k % 10 == 8)
    assert set(np.unique(rewards)) == {-1.0, 0.0, 1.0}
