"""JAX environments with the last action and the last reward in their observations; see `envpool_bridge.envs.last_step`."""

import dataclasses
from functools import partial
from typing import Any, TypeVar

import jax.numpy as jnp

from envpool_bridge.envs.last_step import LastStep
from envpool_bridge.spec.specs import AgentSpec, ArraySpec, EnvSpec, LeafSpec
from envpool_bridge.spec.tree import map_leaves
from jaxsrl.envs.protocol import Array, EnvState, JaxEnv, JaxStep

_Spec = TypeVar("_Spec", EnvSpec, AgentSpec)


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
        return dataclasses.replace(self._added_to(spec), agents=tuple(map(self._added_to, spec.agents)))

    def reset(self, key: Array) -> tuple[EnvState, Any]:
        """Returns the first state, and an observation after no step."""
        state, observation = self.env.reset(key)
        spec = self.env.spec()
        team = (len(spec.agents),) if spec.agents else ()
        action = map_leaves(partial(_first_action, team), spec.action)
        return state, self.chosen.added(observation, action, jnp.zeros(team, jnp.float32))

    def step(self, state: EnvState, action: Array, key: Array) -> JaxStep:
        """Steps the environment and adds the items."""
        step = self.env.step(state, action, key)
        return step._replace(observation=self.chosen.added(step.observation, action, step.reward))

    def _added_to(self, spec: _Spec) -> _Spec:
        observation = self.chosen.added(spec.observation, spec.action, ArraySpec((), "float32"))
        return dataclasses.replace(spec, observation=observation)


def _first_action(team: tuple[int, ...], leaf: LeafSpec) -> Array:
    zeros = jnp.zeros((*team, *leaf.shape), leaf.dtype)
    return jnp.clip(zeros, leaf.bound("low"), leaf.bound("high")) if isinstance(leaf, ArraySpec) else zeros
