"""Protocol of environments written in JAX: pure functions of ONE environment, which are vmapped over rows."""

from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from envpool_bridge.errors import BadEnvOutputError
from envpool_bridge.spec.specs import EnvSpec

Array = jax.Array
EnvState = Any


class JaxStep(NamedTuple):
    """Result of one step of one environment.

    Attributes:
        state: pytree of arrays, of the structure, shapes and dtypes that `reset` returns.
        observation: [...] in the spec's stored dtype and shape.
        reward: [] float32, environment reward units.
        terminated: [] bool, the episode ended by the task's own rules.
        truncated: [] bool, a time limit ended the episode.
    """

    state: EnvState
    observation: Array
    reward: Array
    terminated: Array
    truncated: Array


class JaxEnv(Protocol):
    """One environment. Traceable functions without side effects; it never resets itself, because `autoreset` does.

    An implementation is immutable, hashable and picklable. Keys are typed (`jax.random.key`), and each call consumes its key.
    """

    def spec(self) -> EnvSpec:
        """Returns the spec of a row."""
        ...

    def reset(self, key: Array) -> tuple[EnvState, Array]:
        """Returns the first state and observation of an episode."""
        ...

    def step(self, state: EnvState, action: Array, key: Array) -> JaxStep:
        """Steps once.

        Args:
            state: state of an episode that has not ended (after an end, the result is computed and discarded).
            action: [...], zero-based int32 for a discrete action, else float32 within the spec's bounds.
            key: key of this step.
        """
        ...


def validate_env(env: JaxEnv) -> EnvSpec:
    """Returns the environment's spec after validating shapes and dtypes of its functions' results; computes nothing.

    Raises:
        BadEnvOutputError: names the field with its expected and actual shape and dtype.
    """
    spec = env.spec()
    key = jax.eval_shape(lambda: jax.random.key(0))
    state, observation = jax.eval_shape(env.reset, key)
    action = jax.ShapeDtypeStruct(spec.action.shape, spec.action.dtype)
    step = jax.eval_shape(env.step, state, action, key)
    stored = (spec.observation.shape, np.dtype(spec.observation.dtype))
    _validate(spec, "observation of reset", observation, *stored)
    _validate(spec, "observation of step", step.observation, *stored)
    _validate(spec, "reward", step.reward, (), np.dtype(np.float32))
    _validate(spec, "terminated", step.terminated, (), np.dtype(bool))
    _validate(spec, "truncated", step.truncated, (), np.dtype(bool))
    if jax.tree.structure(state) != jax.tree.structure(step.state):
        raise BadEnvOutputError(
            f"{spec.env_id}: step must return a state of reset's structure: expected {jax.tree.structure(state)}, "
            f"got {jax.tree.structure(step.state)}"
        )
    before, after = jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(step.state)
    for (path, old), new in zip(before, after, strict=True):
        _validate(spec, f"state{jax.tree_util.keystr(path)} of step", new, old.shape, old.dtype)
    return spec


def _validate(spec: EnvSpec, field: str, got: Any, shape: tuple[int, ...], dtype: Any) -> None:
    if got.shape != shape or got.dtype != dtype:
        raise BadEnvOutputError(
            f"{spec.env_id}: {field}: expected shape {shape} and dtype {dtype}, got {got.shape} and {got.dtype}"
        )
