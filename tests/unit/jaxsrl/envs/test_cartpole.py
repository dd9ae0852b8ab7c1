"""Our CartPole against Gymnasium's."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envpool_bridge.envs.config import EnvConfig
from jaxsrl.envs.cartpole import CartPole, CartPoleState
from jaxsrl.envs.protocol import validate_env

STEP = jax.jit(CartPole().step)
KEY = jax.random.key(0)


def test_the_spec_is_gymnasiums():
    assert validate_env(CartPole()) == EnvConfig("CartPole-v1").source().spec()


@pytest.mark.parametrize("seed", range(5))
def test_whole_episodes_follow_gymnasium_from_the_same_state(seed):
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    env.reset(seed=seed)
    state, first = CartPole().reset(jax.random.key(seed))
    env.unwrapped.state = np.asarray(first, np.float64)
    rng = np.random.default_rng(seed)
    num_steps, ended = 0, False
    while not ended:
        action = int(rng.integers(2))
        expected, reward, terminated, truncated, _ = env.step(action)
        state, *got = STEP(state, jnp.int32(action), KEY)
        np.testing.assert_allclose(got[0], expected, rtol=1e-5, atol=1e-5)  # float32 against float64
        assert (float(got[1]), bool(got[2]), bool(got[3])) == (reward, terminated, truncated)
        num_steps, ended = num_steps + 1, terminated or truncated
    assert num_steps >= 8
    env.close()


def test_every_step_of_a_long_episode_follows_gymnasium():
    # Each step from Gymnasium's own state: over 500 steps an inverted pendulum multiplies any rounding by e^40.
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    observation, _ = env.reset(seed=1)
    for num_steps in range(500):
        action = int(observation @ [0.1, 0.3, 1.0, 0.5] > 0)  # balances
        physics = jnp.asarray(env.unwrapped.state, jnp.float32)
        observation, reward, terminated, truncated, _ = env.step(action)
        _, *got = STEP(CartPoleState(physics, jnp.int32(num_steps)), jnp.int32(action), KEY)
        np.testing.assert_allclose(got[0], observation, rtol=1e-5, atol=1e-6)
        assert (float(got[1]), bool(got[2]), bool(got[3])) == (reward, terminated, truncated)
        assert not terminated
    assert truncated
    env.close()


@pytest.mark.parametrize(
    "physics", [(2.41, 1.0, 0.0, 0.0), (-2.41, -1.0, 0.0, 0.0), (0, 0, 0.22, 1), (0, 0, -0.22, -1)]
)
@pytest.mark.parametrize("num_steps", [3, 499])
def test_cartpole_terminates_at_thresholds_truncates_at_limit(physics, num_steps):
    step = STEP(CartPoleState(jnp.array(physics, jnp.float32), jnp.int32(num_steps)), jnp.int32(0), KEY)
    assert bool(step.terminated)
    assert bool(step.truncated) == (num_steps == 499)


def test_first_states_fill_gymnasiums_range():
    first = np.asarray(jax.vmap(lambda key: CartPole().reset(key)[1])(jax.random.split(KEY, 2000)))
    assert np.abs(first).max() <= 0.05
    np.testing.assert_allclose(first.mean(0), 0, atol=0.003)
    np.testing.assert_allclose(first.std(0), 0.1 / 12**0.5, rtol=0.05)  # of a uniform distribution of width 0.1
