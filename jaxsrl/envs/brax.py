"""Adapter for brax (github.com/google/brax): rigid-body physics. Brax's environments are no longer developed."""

import dataclasses
import json
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces

from envpool_bridge.envs.io.spaces import spec_of_spaces
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.envs.optional_imports import array_space, import_package, validate_env_id
from jaxsrl.envs.protocol import Array, JaxStep


class BraxState(NamedTuple):
    """State of one environment.

    Attributes:
        brax: brax's own state.
        num_steps: [] int32, steps since the reset.
    """

    brax: Any
    num_steps: Array


@dataclasses.dataclass(frozen=True)
class BraxEnv:
    """`JaxEnv` of a brax environment. Brax's EpisodeWrapper and AutoResetWrapper are not used, because `autoreset` does both.

    A reset costs about as much as a step, and every step also computes one (see `autoreset`).

    Attributes:
        env_id: brax's name ("ant").
        episode_length: steps after which an episode is truncated.
        kwargs: JSON object of arguments for the environment's constructor, such as {"backend": "spring"}.
    """

    env_id: str
    episode_length: int = 1000
    kwargs: str = "{}"

    def spec(self) -> EnvSpec:
        return _load(self.env_id, self.kwargs)[1]

    def reset(self, key: Array) -> tuple[BraxState, Array]:
        state = _load(self.env_id, self.kwargs)[0].reset(key)
        return BraxState(state, jnp.int32(0)), jnp.asarray(state.obs, jnp.float32)

    def step(self, state: BraxState, action: Array, key: Array) -> JaxStep:
        """Steps once; brax's steps are deterministic, so `key` is unused."""
        del key
        stepped = _load(self.env_id, self.kwargs)[0].step(state.brax, action)
        num_steps = state.num_steps + 1
        return JaxStep(
            BraxState(stepped, num_steps),
            jnp.asarray(stepped.obs, jnp.float32),
            jnp.asarray(stepped.reward, jnp.float32),
            jnp.asarray(stepped.done) > 0.5,  # a float in brax
            num_steps >= self.episode_length,
        )


def make_brax(env_id: str, arguments: dict[str, Any]) -> BraxEnv:
    """Makes the environment; the argument `episode_length` is ours, the others are for its constructor.

    Raises:
        UserError: If the length is invalid; `spec` rejects all else.
    """
    given = dict(arguments)
    length = given.pop("episode_length", 1000)
    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise UserError(f"episode_length must be an integer of at least 1: got {length!r}")
    return BraxEnv(env_id, length, json.dumps(given, sort_keys=True))


@lru_cache(maxsize=32)
def _load(env_id: str, kwargs: str) -> tuple[Any, EnvSpec]:
    """Returns brax's environment and our spec of it."""
    envs = import_package("brax.envs", "brax")
    validate_env_id(env_id, "brax", envs._envs)  # brax has no public list
    with jax.ensure_compile_time_eval():  # loads a model into arrays, and this may run inside a trace
        try:
            env = envs.get_environment(env_id, **json.loads(kwargs))
        except (TypeError, ValueError) as error:
            raise UserError(f"{env_id} of suite 'brax': bad kwargs {kwargs}: {error}") from error
    state = jax.eval_shape(env.reset, jax.eval_shape(lambda: jax.random.key(0)))
    if not isinstance(state.obs, jax.ShapeDtypeStruct):
        raise UserError(f"{env_id} of suite 'brax': expected one array observed, got {jax.tree.structure(state.obs)}")
    observation: spaces.Space = array_space(state.obs.shape, jnp.float32)
    action = array_space((env.action_size,), jnp.float32, -1.0, 1.0)
    return env, spec_of_spaces(observation, action, env_id, 1)
