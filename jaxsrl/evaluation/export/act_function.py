"""An agent's `act` as a function of flat lists of arrays, whose number of rows is a symbol."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from agents.api import AnyAgent, Array, Mode, Params
from envpool_bridge.spec.specs import EnvSpec, SpecTree
from envpool_bridge.spec.tree import Path, is_dict, is_tuple, items, leaves, unflatten


class ActFunction(NamedTuple):
    """The function to export, and its inputs.

    Attributes:
        call: maps (params, seed, *inputs) to the leaves of the action and of the next state. Inputs are the leaves of the
            observation in stored form, those of the state, and is_first.
        inputs: shapes and dtypes of the inputs; rows are symbolic.
        observation: spec of the observation, without the leaf that only a critic may see.
        initial_state: leaves of the initial state of one environment's rows.
    """

    call: Callable[..., list[Array]]
    inputs: tuple[jax.ShapeDtypeStruct, ...]
    observation: SpecTree
    initial_state: list[np.ndarray]


def make_act_function(agent: AnyAgent, spec: EnvSpec, mode: Mode) -> ActFunction:
    """Returns the function of an agent for rows of an environment. It takes stacked frames as `spec` describes them."""
    hidden = [path for path, _ in items(spec.observation)].index(spec.critic_only) if spec.critic_only else None
    observation = _without(spec.observation, spec.critic_only) if hidden is not None else spec.observation
    per_env = spec.rows_per_env
    initial = agent.initial_agent_state(per_env)
    state_leaves, state_tree = jax.tree.flatten(initial)
    num_observations = len(leaves(observation))

    def call(params: Params, seed: Array, *inputs: Array) -> list[Array]:
        is_first = inputs[-1]
        seen = list(inputs[:num_observations])
        if hidden is not None:
            leaf = leaves(spec.observation)[hidden]
            seen.insert(hidden, jnp.zeros((is_first.shape[0], *leaf.shape), leaf.dtype))
        state = state_tree.unflatten(inputs[num_observations:-1])
        rows = jnp.arange(is_first.shape[0], dtype=jnp.uint32)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), rows)
        action, _, after = agent.act(params, unflatten(spec.observation, seen), state, is_first, keys, mode)
        return [*leaves(action), *jax.tree.leaves(after)]

    rows = jax.export.symbolic_shape(f"{per_env}*b" if per_env > 1 else "b")[0]
    shapes = [((rows, *leaf.shape), leaf.dtype) for leaf in leaves(observation)]
    shapes += [((rows, *leaf.shape[1:]), leaf.dtype) for leaf in state_leaves] + [((rows,), "bool")]
    inputs = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes)
    return ActFunction(call, inputs, observation, [np.asarray(leaf) for leaf in state_leaves])


def _without(tree: SpecTree, path: Path) -> Any:
    """Returns the tree without the leaf at this path."""
    if is_dict(tree):
        kept = {key: child for key, child in tree.items() if path != (key,)}
        return {key: _without(child, path[1:]) if key == path[0] else child for key, child in kept.items()}
    if is_tuple(tree):
        raise ValueError(f"expected a path of dict keys, got {path}")
    return tree
