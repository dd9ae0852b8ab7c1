"""JAX environments that repeat actions, against a plain loop."""

from functools import partial

import jax
import numpy as np

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.last_step import LastStep
from jaxsrl.envs.action_repeat import ActionRepeatJaxEnv
from jaxsrl.envs.autoreset import env_run_key, reset_rows, step_rows
from jaxsrl.envs.cartpole import CartPole
from jaxsrl.envs.last_step import LastStepJaxEnv
from jaxsrl.envs.protocol import validate_env
from jaxsrl.envs.registry import make_env, make_jax_env

REPEAT, STEPS = 3, 40
CONFIG = EnvConfig("CartPole-v1", "jax", kwargs='{"max_steps": 20}', action_repeat=REPEAT)


def test_a_jax_environment_repeats_as_a_plain_loop():
    env, plain = make_jax_env(CONFIG), CartPole(20)
    assert env == ActionRepeatJaxEnv(plain, REPEAT)
    assert validate_env(env).action_repeat == REPEAT
    step, step_plain = jax.jit(env.step), jax.jit(plain.step)
    key, rng = jax.random.key(4), np.random.default_rng(1)
    state, _ = env.reset(key)
    ends = []
    for _ in range(STEPS):
        action, expected, total = rng.integers(0, 2).astype(np.int32), None, 0.0
        found = step(state, action, key)
        for count in range(1, REPEAT + 1):
            expected = step_plain(state if expected is None else expected.state, action, key)
            total += float(expected.reward)
            if expected.terminated or expected.truncated:
                ends.append((count, bool(expected.truncated)))
                break
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected._replace(reward=total)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)  # two programs round differently
        state = found.state
        if found.terminated or found.truncated:
            key = jax.random.fold_in(key, 1)
            state, _ = env.reset(key)
    assert {truncated for _, truncated in ends} == {False, True}
    assert min(count for count, _ in ends) < REPEAT


def test_workers_and_other_items_see_repeated_steps():
    assert make_env(CONFIG).spec().action_repeat == REPEAT
    env = make_jax_env(EnvConfig("CartPole-v1", "jax", action_repeat=REPEAT, last_reward=True))
    assert env == LastStepJaxEnv(ActionRepeatJaxEnv(CartPole(), REPEAT), LastStep(action=False, reward=True))
    key = env_run_key(0)
    state = reset_rows(env, key, np.arange(1))
    _, output = jax.jit(partial(step_rows, env))(key, state, np.zeros(1, np.int32))
    np.testing.assert_array_equal(output.observation["last_reward"], [3.0])
