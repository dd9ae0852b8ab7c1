"""Tiny JAX environment whose observations show the key of the reset."""

import dataclasses

import jax
import jax.numpy as jnp

from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.envs.protocol import JaxStep


@dataclasses.dataclass(frozen=True)
class LevelJaxEnv:
    """Episodes of 3 steps; the observation is a random number of the reset and the steps."""

    def spec(self):
        return EnvSpec("level_env", ArraySpec((2,), "float32"), DiscreteSpec(2))

    def reset(self, key):
        state = jnp.stack([jax.random.uniform(key), jnp.float32(0.0)])
        return state, state

    def step(self, state, action, key):
        state = state + jnp.array([0.0, 1.0])
        return JaxStep(state, state, jnp.float32(action), state[1] >= 3.0, jnp.bool_(False))
