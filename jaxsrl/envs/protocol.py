"""Protocol of environments written in JAX: pure functions of ONE environment, which are vmapped over rows."""

from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from envpool_bridge.errors import BadEnvOutputError
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import items, lookup, shown_path, unflatten

Array = jax.Array
EnvState = Any
Observation = Any
"""An array, or nested dicts and tuples of arrays, with the structure of `EnvSpec.observation`."""


class JaxStep(NamedTuple):
    """Result of one step of one environment.

    Attributes:
        state: pytree of arrays, of the structure, shapes and dtypes that `reset` returns.
        observation: [...] each leaf, in the spec's stored dtypes and shapes.
        reward: [] float32, environment reward units.
        terminated: [] bool, the episode ended by the task's own rules.
        truncated: [] bool, a time limit ended the episode.
    """

    state: EnvState
    observation: Observation
    reward: Array
    terminated: Array
    truncated: Array


class JaxEnv(Protocol):
    """One environment. Traceable functions without side effects; it never resets itself, because `autoreset` does.

    An implementation is immutable, hashable and picklable. Keys are typed (`jax.random.key`), and each call consumes its key.

    With A agents in its spec, observations, actions and the reward have the axis A first. All agents have one observation and
    action, are present in the whole episode, and end it together.
    """

    def spec(self) -> EnvSpec:
        """Returns the spec of a row."""
        ...

    def reset(self, key: Array) -> tuple[EnvState, Observation]:
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
    team = (len(spec.agents),) if spec.agents else ()
    action = jax.ShapeDtypeStruct((*team, *spec.action.shape), spec.action.dtype)
    step = jax.eval_shape(env.step, state, action, key)
    _validate_observation(spec, "observation of reset", observation)
    _validate_observation(spec, "observation of step", step.observation)
    _validate(spec, "reward", step.reward, team, np.dtype(np.float32))
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


def _validate_observation(spec: EnvSpec, field: str, got: Any) -> None:
    leaves = list(items(spec.observation))
    expected = jax.tree.structure(unflatten(spec.observation, [0] * len(leaves)))
    if jax.tree.structure(got) != expected:
        raise BadEnvOutputError(f"{spec.env_id}: {field}: expected {expected}, got {jax.tree.structure(got)}")
    team = (len(spec.agents),) if spec.agents else ()
    for path, leaf in leaves:
        _validate(spec, shown_path(field, path), lookup(got, path), (*team, *leaf.shape), np.dtype(leaf.dtype))


def _validate(spec: EnvSpec, field: str, got: Any, shape: tuple[int, ...], dtype: Any) -> None:
    if got.shape != shape or got.dtype != dtype:
        raise BadEnvOutputError(
            f"{spec.env_id}: {field}: expected shape {shape} and dtype {dtype}, got {got.shape} and {got.dtype}"
        )
