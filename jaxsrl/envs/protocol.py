"""The protocol of an environment written in JAX: pure functions of ONE environment, which the system vmaps over rows."""

from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from envpool_bridge.errors import BadEnvOutputError
from envpool_bridge.spec.specs import EnvSpec

Array = jax.Array
EnvState = Any


class JaxStep(NamedTuple):
    """What one step of one environment returns.

    Attributes:
        state: pytree of arrays, of the structure, shapes and dtypes that `reset` returns.
        observation: [...] in the spec's stored dtype and shape.
        reward: [] float32, environment reward units.
        terminated: [] bool, the episode ended by the task's own rules.
        truncated: [] bool, the episode was cut by a time limit.
    """

    state: EnvState
    observation: Array
    reward: Array
    terminated: Array
    truncated: Array


class JaxEnv(Protocol):
    """One environment. Traceable functions without side effects; it never resets itself, the system does.

    An implementation is immutable, hashable and picklable. Keys are typed (`jax.random.key`) and each is consumed by the call.
    """

    def spec(self) -> EnvSpec:
        """What a row looks like."""
        ...

    def reset(self, key: Array) -> tuple[EnvState, Array]:
        """The first state and observation of an episode."""
        ...

    def step(self, state: EnvState, action: Array, key: Array) -> JaxStep:
        """One step.

        Args:
            state: of an episode that has not ended (after an end the result is computed, and thrown away).
            action: [...], zero-based int32 for a discrete action, else float32 within the spec's bounds.
            key: of this step.
        """
        ...


def validate_env(env: JaxEnv) -> EnvSpec:
    """The environment's spec, after checking shapes and dtypes against what its functions return; computes nothing.

    Raises:
        BadEnvOutputError: names the field, what its spec or the protocol wants, and what came.
    """
    spec = env.spec()
    key = jax.eval_shape(lambda: jax.random.key(0))
    state, observation = jax.eval_shape(env.reset, key)
    action = jax.ShapeDtypeStruct(spec.action.shape, spec.action.dtype)
    step = jax.eval_shape(env.step, state, action, key)
    stored = (spec.observation.shape, np.dtype(spec.observation.dtype))
    _require(spec, "observation of reset", observation, *stored)
    _require(spec, "observation of step", step.observation, *stored)
    _require(spec, "reward", step.reward, (), np.dtype(np.float32))
    _require(spec, "terminated", step.terminated, (), np.dtype(bool))
    _require(spec, "truncated", step.truncated, (), np.dtype(bool))
    if jax.tree.structure(state) != jax.tree.structure(step.state):
        raise BadEnvOutputError(
            f"{spec.env_id}: step must return a state of reset's structure: expected {jax.tree.structure(state)}, "
            f"got {jax.tree.structure(step.state)}"
        )
    before, after = jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(step.state)
    for (path, old), new in zip(before, after, strict=True):
        _require(spec, f"state{jax.tree_util.keystr(path)} of step", new, old.shape, old.dtype)
    return spec


def _require(spec: EnvSpec, field: str, got: Any, shape: tuple[int, ...], dtype: Any) -> None:
    if got.shape != shape or got.dtype != dtype:
        raise BadEnvOutputError(
            f"{spec.env_id}: {field}: expected shape {shape} and dtype {dtype}, got {got.shape} and {got.dtype}"
        )
