"""JAX environments that observe their last step, on a device and in a worker."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.last_step import LastStep
from envpool_bridge.envs.protocol import EpisodeReset, first_rows
from envpool_bridge.envs.protocol import step_rows as rows_of_step
from envpool_bridge.errors import BadEnvOutputError
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.envs.autoreset import env_run_key, reset_rows, step_rows
from jaxsrl.envs.cartpole import CartPole
from jaxsrl.envs.last_step import LastStepJaxEnv
from jaxsrl.envs.protocol import JaxStep, validate_env
from jaxsrl.envs.registry import make_env, make_jax_env

STEPS, ROWS = 9, 2
CONFIG = EnvConfig("CartPole-v1", "jax", kwargs='{"max_steps": 3}', last_action=True, last_reward=True)
ACTIONS = np.random.default_rng(0).integers(0, 2, (STEPS, ROWS)).astype(np.int32)


def test_device_rows_observe_their_last_step():
    env, key = make_jax_env(CONFIG), env_run_key(3)
    assert env == LastStepJaxEnv(CartPole(3), LastStep(action=True, reward=True))
    assert validate_env(env).observation["last_action"] == DiscreteSpec(2)
    state = reset_rows(env, key, np.arange(ROWS))
    plain = reset_rows(CartPole(3), key, np.arange(ROWS))
    np.testing.assert_array_equal(state.observation["last_reward"], [0.0] * ROWS)
    step, plain_step = jax.jit(partial(step_rows, env)), jax.jit(partial(step_rows, CartPole(3)))
    firsts = 0
    for action in ACTIONS:
        state, output = step(key, state, action)
        plain, expected = plain_step(key, plain, action)
        seen, is_first = output.observation, np.asarray(output.is_first)
        np.testing.assert_array_equal(seen["observation"], expected.observation)
        np.testing.assert_array_equal(seen["last_action"], np.where(is_first, 0, action))
        np.testing.assert_array_equal(seen["last_reward"], np.where(is_first, 0.0, output.reward))
        firsts += is_first.sum()
    assert firsts == 2 * ROWS


def test_worker_rows_equal_those_of_a_device():
    source, key = make_env(CONFIG), env_run_key(3)
    slot = allocate_slots(make_layout(source.spec(), PoolShape(1, 1, 1, ROWS, STEPS, 1), {}))[0]
    rows = source.make_rows(range(ROWS), 3, False)
    rows.reset(EpisodeReset((0,) * ROWS, (None,) * ROWS), first_rows(slot))
    state = reset_rows(make_jax_env(CONFIG), key, np.arange(ROWS))
    step = jax.jit(partial(step_rows, make_jax_env(CONFIG)))
    for t, action in enumerate(ACTIONS):
        rows.step(action, rows_of_step(slot, t))
        state, output = step(key, state, action)
        for name, leaf in output.observation.items():
            np.testing.assert_array_equal(slot.observation[name][t + 1], leaf)
    rows.verify({name: leaf[1:] for name, leaf in slot.observation.items()}, slot.reward)
    slot.observation["last_action"][4, 1] = 2
    with pytest.raises(BadEnvOutputError, match=r"observation\['last_action'\]: expected 0 <= value < 2, got 2"):
        rows.verify({name: leaf[1:] for name, leaf in slot.observation.items()}, slot.reward)


class Positive:
    """Continuous actions above 0."""

    def spec(self):
        return EnvSpec("Positive", ArraySpec((1,), "float32"), ArraySpec((2,), "float32", (0.5, -1.0), (2.0, 1.0)))

    def reset(self, key):
        return jnp.int32(0), jnp.zeros(1)

    def step(self, state, action, key):
        return JaxStep(state, action[:1], jnp.float32(2.0), jnp.bool(False), jnp.bool(False))


def test_first_action_lies_within_its_bounds():
    env = LastStepJaxEnv(Positive(), LastStep(action=True, reward=False))
    validate_env(env)
    state = reset_rows(env, env_run_key(0), np.arange(1))
    assert set(state.observation) == {"observation", "last_action"}
    np.testing.assert_array_equal(state.observation["last_action"], [[0.5, 0.0]])
    _, output = step_rows(env, env_run_key(0), state, np.float32([[9.0, 0.25]]))
    np.testing.assert_array_equal(output.observation["last_action"], [[2.0, 0.25]])


def test_each_agent_observes_its_own_last_step():
    config = EnvConfig("RockPaperScissors-v1", "jax", kwargs='{"rounds": 3}', last_action=True, last_reward=True)
    env, key = make_jax_env(config), env_run_key(0)
    spec = validate_env(env)
    assert [agent.observation for agent in spec.agents] == [spec.observation] * 2
    assert spec.observation["last_action"] == DiscreteSpec(3)
    state = reset_rows(env, key, np.arange(4))
    np.testing.assert_array_equal(state.observation["last_action"], [0] * 4)
    step = jax.jit(partial(step_rows, env))
    for actions in ([0, 1, 2, 2], [1, 0, 2, 1]):
        state, output = step(key, state, np.int32(actions))
        np.testing.assert_array_equal(output.observation["last_action"], actions)
        np.testing.assert_array_equal(output.observation["last_reward"], output.reward)
    np.testing.assert_array_equal(output.reward, [1, -1, 1, -1])


def test_wrong_structure_of_observations_is_rejected():
    class Wrong(Positive):
        def reset(self, key):
            return jnp.int32(0), {"observation": jnp.zeros(1)}

    with pytest.raises(BadEnvOutputError, match="Positive: observation of reset: expected PyTreeDef"):
        validate_env(Wrong())
