"""The brax adapter; skipped where brax is not installed."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # brax says that it is no longer developed
    envs = pytest.importorskip("brax.envs", reason="brax is not installed: pip install 'jaxsrl[brax]'")

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec
from jaxsrl.envs.protocol import validate_env
from jaxsrl.envs.registry import make_jax_env

pytestmark = pytest.mark.filterwarnings("ignore")


def test_the_time_limit_truncates_and_nothing_else_does():
    env = make_jax_env(EnvConfig("fast", "brax", '{"episode_length": 3}'))
    spec = validate_env(env)
    assert spec.action == ArraySpec((1,), "float32", -1.0, 1.0)
    state, observation = env.reset(jax.random.key(0))
    assert observation.shape == spec.observation.shape
    ends = []
    for _ in range(3):
        state, _, _, terminated, truncated = env.step(state, jnp.zeros(1), jax.random.key(0))
        ends.append((bool(terminated), bool(truncated)))
    assert ends == [(False, False), (False, False), (False, True)]


@pytest.mark.slow
def test_steps_are_braxs_own():
    theirs = envs.get_environment("inverted_pendulum", backend="spring")
    ours = make_jax_env(EnvConfig("inverted_pendulum", "brax", '{"backend": "spring"}'))
    validate_env(ours)
    expected = jax.jit(theirs.reset)(jax.random.key(3))
    state, observation = jax.jit(ours.reset)(jax.random.key(3))
    np.testing.assert_allclose(observation, expected.obs, rtol=1e-5, atol=1e-6)
    step, their_step = jax.jit(ours.step), jax.jit(theirs.step)
    ended = False
    for _ in range(200):
        action = jnp.ones(1)
        expected = their_step(expected, action)
        state, observation, reward, terminated, truncated = step(state, action, jax.random.key(0))
        np.testing.assert_allclose(observation, expected.obs, rtol=1e-4, atol=1e-5)
        assert (float(reward), bool(terminated), bool(truncated)) == (
            float(expected.reward),
            bool(expected.done),
            False,
        )
        ended = bool(terminated)
        if ended:
            break
    assert ended


@pytest.mark.parametrize(
    ("env_id", "kwargs", "message"),
    [
        ("Ant", "{}", "unknown environment 'Ant' of suite 'brax': did you mean"),
        ("fast", '{"episode_length": 0}', "episode_length must be an integer of at least 1: got 0"),
        ("fast", '{"episode_length": true}', "episode_length must be an integer of at least 1: got True"),
        ("fast", '{"asymmetric_obs": true}', "bad kwargs .*requires dictionary observations"),
        ("fast", '{"obs_mode": "dict_state"}', "expected one array observed, got"),
    ],
)
def test_what_does_not_exist_is_refused(env_id, kwargs, message):
    with pytest.raises(UserError, match=message):
        make_jax_env(EnvConfig(env_id, "brax", kwargs))
