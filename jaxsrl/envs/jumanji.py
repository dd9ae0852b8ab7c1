"""Adapter for jumanji (github.com/instadeepai/jumanji): puzzles, packing, routing, for one agent."""

import dataclasses
import json
import math
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from gymnasium import spaces

from envpool_bridge.envs.io.spaces import spec_of_spaces
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.envs.optional_imports import array_space, import_package, validate_env_id
from jaxsrl.envs.protocol import Array, EnvState, JaxStep

_LAST = 2  # jumanji.types.StepType.LAST


@dataclasses.dataclass(frozen=True)
class JumanjiEnv:
    """`JaxEnv` of a jumanji environment.

    A last step with discount 0 is terminated, with another discount it is truncated. Most of jumanji's environments also use
    discount 0 at their time limit, and therefore count as terminated.

    An observation of several arrays is concatenated to one float32 vector, in the order of its fields. An action mask is then
    only a part of the observation. Environments of several agents, or several discrete actions per step, are rejected.

    Attributes:
        env_id: jumanji's id ("Snake-v1").
        kwargs: JSON object of arguments for the environment's constructor.
    """

    env_id: str
    kwargs: str = "{}"

    def spec(self) -> EnvSpec:
        return _load(self.env_id, self.kwargs)[1]

    def reset(self, key: Array) -> tuple[EnvState, Array]:
        state, first = _load(self.env_id, self.kwargs)[0].reset(key)
        return state, _join(first.observation)

    def step(self, state: EnvState, action: Array, key: Array) -> JaxStep:
        """Steps once; jumanji's state has its own random key, so `key` is unused."""
        del key
        state, timestep = _load(self.env_id, self.kwargs)[0].step(state, action)
        last, no_value = timestep.step_type == _LAST, timestep.discount == 0
        return JaxStep(
            state,
            _join(timestep.observation),
            jnp.asarray(timestep.reward, jnp.float32),
            last & no_value,
            last & ~no_value,
        )


@lru_cache(maxsize=32)
def _load(env_id: str, kwargs: str) -> tuple[Any, EnvSpec]:
    """Returns jumanji's environment and our spec of it."""
    jumanji = import_package("jumanji", "jumanji")
    validate_env_id(env_id, "jumanji", jumanji.registered_environments())
    with jax.ensure_compile_time_eval():  # some create arrays, possibly inside a trace
        try:
            env = jumanji.make(env_id, **json.loads(kwargs))
        except TypeError as error:
            raise UserError(f"{env_id} of suite 'jumanji': bad kwargs {kwargs}: {error}") from error
        return env, _spec(env, env_id)


def _spec(env: Any, env_id: str) -> EnvSpec:
    key = jax.eval_shape(lambda: jax.random.key(0))
    _, first = jax.eval_shape(env.reset, key)
    if first.reward.shape or first.discount.shape:
        raise UserError(f"{env_id} of suite 'jumanji': expected one agent, got rewards of shape {first.reward.shape}")
    observed = jax.eval_shape(_join, first.observation)
    action = env.action_spec
    if action.shape == () and hasattr(action, "num_values"):
        space: spaces.Space = spaces.Discrete(int(action.num_values))
    elif jnp.issubdtype(action.dtype, jnp.floating):
        low, high = getattr(action, "minimum", -math.inf), getattr(action, "maximum", math.inf)
        space = array_space(action.shape, action.dtype, low, high)
    else:
        raise UserError(
            f"{env_id} of suite 'jumanji': expected one discrete action or floating-point ones, got {action}"
        )
    return spec_of_spaces(array_space(observed.shape, observed.dtype), space, env_id, 1)


def _join(observation: Any) -> Array:
    """Returns one array as it is, several as one float32 vector."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(observation)]
    if len(leaves) == 1:
        return leaves[0]
    return jnp.concatenate([leaf.astype(jnp.float32).ravel() for leaf in leaves])
