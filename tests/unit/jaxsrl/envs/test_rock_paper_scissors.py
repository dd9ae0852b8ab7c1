"""Rows of an environment of several agents in JAX: rock-paper-scissors, against a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.envs.autoreset import env_run_key, reset_rows, step_rows
from jaxsrl.envs.protocol import validate_env
from jaxsrl.envs.registry import make_env, make_jax_env
from jaxsrl.envs.rock_paper_scissors import RockPaperScissors

BEATS = {0: 2, 1: 0, 2: 1}  # rock beats scissors, and so on


def test_rewards_are_those_of_the_rules():
    env = RockPaperScissors()
    state, _ = env.reset(jax.random.key(0))
    for one in range(3):
        for other in range(3):
            step = env.step(state, jnp.array([one, other]), jax.random.key(0))
            first = 0 if one == other else 1 if BEATS[one] == other else -1
            assert step.reward.tolist() == [first, -first]


def test_rows_of_an_environment_start_and_end_together():
    env, key = RockPaperScissors(rounds=2), env_run_key(0)
    state = jax.jit(reset_rows, static_argnums=0)(env, key, jnp.arange(6))
    assert state.observation.shape == (6, 1)
    step, rng, ended, rounds = jax.jit(step_rows, static_argnums=0), np.random.default_rng(0), False, 0
    for _ in range(8):
        action = rng.integers(0, 3, 6).astype(np.int32)
        state, out = step(env, key, state, jnp.asarray(action))
        rounds = 0 if ended else rounds + 1
        pairs = action.reshape(3, 2)
        first = np.array([0 if a == b else 1 if BEATS[a] == b else -1 for a, b in pairs.tolist()])
        expected = np.zeros(6) if ended else np.stack([first, -first], axis=1).reshape(-1)
        assert out.reward.tolist() == expected.tolist()
        assert out.valid.tolist() == [not ended] * 6
        assert out.is_first.tolist() == [ended] * 6
        ended = rounds == 2
        assert out.terminated.tolist() == [ended] * 6
        assert state.row_id.tolist() == list(range(6))


def test_the_registry_knows_it():
    config = EnvConfig("RockPaperScissors-v1", "jax", '{"rounds": 4}')
    env = make_jax_env(config)
    assert env == RockPaperScissors(4)
    assert make_env(config).spec() == validate_env(env)
    with pytest.raises(UserError, match="rounds must be at least 1: got 0"):
        make_env(EnvConfig("RockPaperScissors-v1", "jax", '{"rounds": 0}'))
