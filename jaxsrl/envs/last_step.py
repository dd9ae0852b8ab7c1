"""JAX environments with the last action and the last reward in their observations; see `envpool_bridge.envs.last_step`."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from envpool_bridge.envs.last_step import LastStep
from envpool_bridge.spec.specs import ArraySpec, EnvSpec, LeafSpec
from envpool_bridge.spec.tree import map_leaves
from jaxsrl.envs.protocol import Array, EnvState, JaxEnv, JaxStep


@dataclasses.dataclass(frozen=True)
class LastStepJaxEnv:
    """`JaxEnv` of another environment.

    Attributes:
        env: the other environment.
        chosen: the added items.
    """

    env: JaxEnv
    chosen: LastStep

    def spec(self) -> EnvSpec:
        """Returns the environment's spec with the items in its observation."""
        spec = self.env.spec()
        observation = self.chosen.added(spec.observation, spec.action, ArraySpec((), "float32"))
        return dataclasses.replace(spec, observation=observation)

    def reset(self, key: Array) -> tuple[EnvState, Any]:
        """Returns the first state, and an observation after no step."""
        state, observation = self.env.reset(key)
        action = map_leaves(_first_action, self.env.spec().action)
        return state, self.chosen.added(observation, action, jnp.float32(0.0))

    def step(self, state: EnvState, action: Array, key: Array) -> JaxStep:
        """Steps the environment and adds the items."""
        step = self.env.step(state, action, key)
        return step._replace(observation=self.chosen.added(step.observation, action, step.reward))


def _first_action(leaf: LeafSpec) -> Array:
    zeros = jnp.zeros(leaf.shape, leaf.dtype)
    return jnp.clip(zeros, leaf.bound("low"), leaf.bound("high")) if isinstance(leaf, ArraySpec) else zeros
