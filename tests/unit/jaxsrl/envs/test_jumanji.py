"""The jumanji adapter; skipped where jumanji is not installed."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    jumanji = pytest.importorskip("jumanji", reason="jumanji is not installed: pip install 'jaxsrl[jumanji]'")

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.envs.jumanji import JumanjiEnv
from jaxsrl.envs.protocol import validate_env
from jaxsrl.envs.registry import make_jax_env

pytestmark = pytest.mark.filterwarnings("ignore")


def test_steps_are_jumanjis_own_joined_into_one_vector():
    theirs = jumanji.make("Maze-v0", time_limit=12)
    ours = make_jax_env(EnvConfig("Maze-v0", "jumanji", '{"time_limit": 12}'))
    spec = validate_env(ours)
    their_state, timestep = jax.jit(theirs.reset)(jax.random.key(2))
    state, observation = jax.jit(ours.reset)(jax.random.key(2))
    step, their_step = jax.jit(ours.step), jax.jit(theirs.step)
    assert spec.action.num_values == 4
    for k in range(12):
        expected = np.concatenate([np.ravel(leaf).astype(np.float32) for leaf in jax.tree.leaves(timestep.observation)])
        np.testing.assert_array_equal(observation, expected)
        their_state, timestep = their_step(their_state, jnp.int32(k % 4))
        state, observation, reward, terminated, truncated = step(state, jnp.int32(k % 4), jax.random.key(k))
        assert float(reward) == float(timestep.reward)
        assert (bool(terminated), bool(truncated)) == (k == 11, False)  # jumanji ends with discount 0 at its limit too


@pytest.mark.parametrize(
    ("step_type", "discount", "ends"),
    [
        (1, 1.0, (False, False)),
        (1, 0.0, (False, False)),
        (2, 0.0, (True, False)),
        (2, 1.0, (False, True)),
        (2, 0.5, (False, True)),
    ],
)
def test_jumanji_last_discount_decides_termination(step_type, discount, ends, monkeypatch):
    class One:
        def step(self, state, action):
            observation = jnp.zeros(2, jnp.int32)
            extras = {"step_type": jnp.int8(step_type), "discount": jnp.float32(discount)}
            return state, jumanji.types.TimeStep(reward=jnp.float32(1), observation=observation, **extras)

    monkeypatch.setattr("jaxsrl.envs.jumanji._load", lambda env_id, kwargs: (One(), None))
    step = JumanjiEnv("One").step(0, jnp.int32(0), jax.random.key(0))
    assert (bool(step.terminated), bool(step.truncated)) == ends
    assert step.observation.dtype == jnp.int32  # a single array stays as it is


@pytest.mark.parametrize(
    ("env_id", "kwargs", "message"),
    [
        ("Maze", "{}", "unknown environment 'Maze' of suite 'jumanji': did you mean .*Maze-v0"),
        ("Maze-v0", '{"colour": 1}', "bad kwargs"),
        ("Connector-v3", "{}", r"expected one agent, got rewards of shape \(10,\)"),
        ("Minesweeper-v0", "{}", "expected one discrete action or floating-point ones, got MultiDiscreteArray"),
    ],
)
def test_what_cannot_be_served_is_refused(env_id, kwargs, message):
    with pytest.raises(UserError, match=message):
        make_jax_env(EnvConfig(env_id, "jumanji", kwargs))
