"""Inputs of a centralized critic for a row: its observation and agent index, the others' actions, and the state or observations.

Rows are environment x agent with environments major, so every operation stays within an environment: rows that are sharded over
environments need no gather. Observations and actions of absent agents are replaced by zeros.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from agents.api import Action, Array, Observation
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, is_one_leaf
from envpool_bridge.spec.tree import Path


def num_coma_actions(spec: EnvSpec) -> int:
    """Returns A, the number of actions of every agent.

    Raises:
        UserError: The action is not one Discrete value, or the agents' numbers of actions differ.
    """
    if not is_one_leaf(spec.action) or not isinstance(spec.action, DiscreteSpec):
        raise UserError(
            f"{spec.env_id}: COMA weighs every action of an agent against the others: expected one Discrete action, got "
            f"{spec.action}; use PPO"
        )
    different = [agent.name for agent in spec.agents if agent.action != spec.agents[0].action]
    if different:
        sizes = {agent.name: getattr(agent.action, "num_values", agent.action) for agent in spec.agents}
        raise UserError(
            f"{spec.env_id}: COMA's critic has one output for each action, expected as many of every agent, got {sizes}: map "
            f"agents with different actions to policies of their own (--policies.mapping), or use MAPPO"
        )
    return spec.action.num_values


def team_spec(spec: EnvSpec) -> EnvSpec:
    """Returns the spec of `team_view`.

    Raises:
        UserError: As in `num_coma_actions`.
    """
    own = _without(spec.observation, spec.action_mask)
    view: dict[str, Any] = {
        "agent": DiscreteSpec(spec.rows_per_env),
        "others": ArraySpec((spec.rows_per_env * num_coma_actions(spec),), "float32"),
        "own": own,
    }
    if not spec.critic_only:
        view["team"] = (own,) * spec.rows_per_env
    return EnvSpec(spec.env_id, view, spec.action)


def team_view(spec: EnvSpec, observation: Observation, action: Action, present: Array) -> Observation:
    """Returns the critic's inputs for every row.

    Args:
        spec: Spec of the rows; n = `spec.rows_per_env`.
        observation: Leaves [T, B, ...], with the global state at `spec.critic_only` if there is one.
        action: [T, B] int32.
        present: [T, B] bool.

    Returns:
        A dict. "agent" [T, B] int32 is the index of the agent. "others" [T, B, n A] float32 are one-hot actions of all agents,
        zeros for the row's own and absent ones. "own" is the row's observation without its action mask. Without a global
        state, "team" are the observations of all n agents in order. Observations of absent agents are zeros.
    """
    count = spec.rows_per_env
    own = jax.tree.map(partial(_where_present, present), _without(observation, spec.action_mask))
    chosen = jax.nn.one_hot(action, num_coma_actions(spec)) * present[..., None]
    agents = jnp.arange(action.shape[1], dtype=jnp.int32) % count
    view: dict[str, Any] = {
        "agent": jnp.broadcast_to(agents, action.shape),
        "others": _other_actions(count, chosen),
        "own": own,
    }
    if not spec.critic_only:
        view["team"] = tuple(jax.tree.map(partial(_agent_values, count, index), own) for index in range(count))
    return view


def _without(tree: Any, path: Path) -> Any:
    """Returns the tree of dicts without the subtree at `path`; unchanged for an empty path."""
    if not path:
        return tree
    key, *rest = path
    left = {name: child for name, child in tree.items() if name != key}
    return left | {key: _without(tree[key], tuple(rest))} if rest else left


def _where_present(present: Array, leaf: Array) -> Array:
    """Returns values with zeros for absent agents. A product would keep their NaNs."""
    return jnp.where(present.reshape(present.shape + (1,) * (leaf.ndim - 2)), leaf, jnp.zeros_like(leaf))


def _agent_values(count: int, index: int, leaf: Array) -> Array:
    """Returns, in every row of [T, B, ...], the value of agent `index` of its environment."""
    by_env = leaf.reshape((leaf.shape[0], -1, count, *leaf.shape[2:]))
    return jnp.broadcast_to(by_env[:, :, index : index + 1], by_env.shape).reshape(leaf.shape)


def _other_actions(count: int, chosen: Array) -> Array:
    """Returns [T, B, n A]: the rows [T, B, A] of all agents of the environment, zeros for the row's own."""
    steps, rows, size = chosen.shape
    by_env = chosen.reshape((steps, -1, 1, count, size))
    other = ~jnp.eye(count, dtype=bool)[:, :, None]
    return jnp.where(other, by_env, 0.0).reshape((steps, rows, count * size))
