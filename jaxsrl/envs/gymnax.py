"""Adapter for gymnax (github.com/RobertTLange/gymnax), version 1 or newer."""

import dataclasses
import json
from functools import lru_cache
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
from gymnasium import spaces

from envpool_bridge.envs.io.spaces import spec_of_spaces
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.envs.optional_imports import array_space, import_package, validate_env_id
from jaxsrl.envs.protocol import Array, EnvState, JaxStep

_ADVICE = " (which brings gymnasium 1.3; to keep a newer one, which works: pip install --no-deps 'gymnax>=1.0' seaborn pandas)"


@dataclasses.dataclass(frozen=True)
class GymnaxEnv:
    """`JaxEnv` of a gymnax environment, by its `reset_env` and `step_env`; its `step` would reset by itself.

    `terminated` is from `step_env`, `truncated` is `is_truncated` of the next state.

    Attributes:
        env_id: gymnax's id.
        kwargs: JSON object; names of the environment's parameters set those (`max_steps_in_episode`), others go to its
            constructor.
    """

    env_id: str
    kwargs: str = "{}"

    def spec(self) -> EnvSpec:
        """Returns the spec without bounds of observations: those that gymnax declares are wrong in several environments."""
        return _load(self.env_id, self.kwargs).spec

    def reset(self, key: Array) -> tuple[EnvState, Array]:
        loaded = _load(self.env_id, self.kwargs)
        observation, state = loaded.env.reset_env(key, loaded.params)
        return state, jnp.asarray(observation)

    def step(self, state: EnvState, action: Array, key: Array) -> JaxStep:
        env, params, spec = _load(self.env_id, self.kwargs)
        observation, state, reward, terminated, _ = env.step_env(key, state, action, params)
        return JaxStep(
            state,
            jnp.asarray(observation, spec.observation.dtype),
            jnp.asarray(reward, jnp.float32),
            jnp.asarray(terminated, bool),
            jnp.asarray(env.is_truncated(state, params), bool),
        )


class _LoadedEnv(NamedTuple):
    """gymnax's environment and parameters, and our spec."""

    env: Any
    params: Any
    spec: EnvSpec


@lru_cache(maxsize=32)
def _load(env_id: str, kwargs: str) -> _LoadedEnv:
    gymnax = import_package("gymnax", "gymnax", _ADVICE)
    validate_env_id(env_id, "gymnax", gymnax.registered_envs)
    arguments = json.loads(kwargs)
    with jax.ensure_compile_time_eval():  # spaces and some environments create arrays, possibly inside a trace
        names = {field.name for field in dataclasses.fields(gymnax.make(env_id)[1])}
        try:
            env, params = gymnax.make(env_id, **{name: value for name, value in arguments.items() if name not in names})
        except TypeError as error:
            raise UserError(f"{env_id} of suite 'gymnax': bad kwargs {kwargs}: {error}") from error
        if not hasattr(env, "is_truncated"):
            raise UserError(
                f"gymnax >= 1.0 is needed, which reports truncation separately: pip install 'jaxsrl[gymnax]'{_ADVICE}"
            )
        params = params.replace(**{name: value for name, value in arguments.items() if name in names})
        return _LoadedEnv(env, params, _spec(env, params, env_id))


def _spec(env: Any, params: Any, env_id: str) -> EnvSpec:
    key = jax.eval_shape(lambda: jax.random.key(0))
    observed, _ = jax.eval_shape(lambda key: env.reset_env(key, params), key)
    space, action = env.observation_space(params), env.action_space(params)
    if hasattr(space, "n"):
        observation: gymnasium.Space = spaces.Discrete(int(space.n))
    elif isinstance(observed, jax.ShapeDtypeStruct):
        # The actual observation: declared dtypes are wrong in some environments.
        observation = array_space(observed.shape, observed.dtype)
    else:
        raise UserError(f"{env_id} of suite 'gymnax': observation {space} is not supported: expected one array")
    if hasattr(action, "n"):
        return spec_of_spaces(observation, spaces.Discrete(int(action.n)), env_id, 1)
    if not hasattr(action, "low"):
        raise UserError(f"{env_id} of suite 'gymnax': action {action} is not supported: expected one Box or Discrete")
    return spec_of_spaces(observation, array_space(action.shape, action.dtype, action.low, action.high), env_id, 1)
