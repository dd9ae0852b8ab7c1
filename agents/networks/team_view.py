"""What a centralised critic sees of a row: its own observation, who it is, what the others did, and the state or what they see.

Rows are environment x agent with environments major, so that everything here stays within an environment: nothing is gathered
where rows are sharded over environments. What an agent that is not there observes and does is taken as zeros, whatever it holds.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from agents.api import Action, Array, Observation
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, is_one_leaf
from envpool_bridge.spec.tree import Path


def num_actions_of(spec: EnvSpec) -> int:
    """A, how many actions every agent chooses among.

    Raises:
        UserError: the action is not one Discrete value, or the agents' numbers of actions differ.
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
    """Returns the spec of `team_view`: what a critic network is made for.

    Raises:
        UserError: as `num_actions_of`.
    """
    own = _without(spec.observation, spec.action_mask)
    view: dict[str, Any] = {
        "agent": DiscreteSpec(spec.rows_per_env),
        "others": ArraySpec((spec.rows_per_env * num_actions_of(spec),), "float32"),
        "own": own,
    }
    if not spec.critic_only:
        view["team"] = (own,) * spec.rows_per_env
    return EnvSpec(spec.env_id, view, spec.action)


def team_view(spec: EnvSpec, observation: Observation, action: Action, present: Array) -> Observation:
    """Returns the critic's inputs for every row.

    Args:
        spec: of the rows; n = `spec.rows_per_env`.
        observation: [T, B, ...] each leaf; with the global state at `spec.critic_only` if there is one.
        action: [T, B] int32.
        present: [T, B] bool, whether the row's agent is there.

    Returns:
        By name: "agent" [T, B] int32, which of the n; "others" [T, B, n A] float32, one-hot actions of all agents, zeros in place
        of the row's own and of absent ones; "own", the row's observation without its action mask; and where there is no global
        state "team", the observations of all n agents in order. Observations of absent agents are zeros.
    """
    count = spec.rows_per_env
    own = jax.tree.map(partial(_where_present, present), _without(observation, spec.action_mask))
    chosen = jax.nn.one_hot(action, num_actions_of(spec)) * present[..., None]
    places = jnp.arange(action.shape[1], dtype=jnp.int32) % count
    view: dict[str, Any] = {
        "agent": jnp.broadcast_to(places, action.shape),
        "others": _of_others(count, chosen),
        "own": own,
    }
    if not spec.critic_only:
        view["team"] = tuple(jax.tree.map(partial(_of_agent, count, place), own) for place in range(count))
    return view


def _without(tree: Any, path: Path) -> Any:
    """Returns the tree of dicts without what is at these keys; all of it if there are none."""
    if not path:
        return tree
    key, *rest = path
    left = {name: child for name, child in tree.items() if name != key}
    return left | {key: _without(tree[key], tuple(rest))} if rest else left


def _where_present(present: Array, leaf: Array) -> Array:
    """Returns a selection, not a product: absent agents' values may be anything."""
    return jnp.where(present.reshape(present.shape + (1,) * (leaf.ndim - 2)), leaf, jnp.zeros_like(leaf))


def _of_agent(count: int, place: int, leaf: Array) -> Array:
    """[T, B, ...]: in every row, what the agent at `place` of its environment has."""
    by_env = leaf.reshape((leaf.shape[0], -1, count, *leaf.shape[2:]))
    return jnp.broadcast_to(by_env[:, :, place : place + 1], by_env.shape).reshape(leaf.shape)


def _of_others(count: int, chosen: Array) -> Array:
    """[T, B, n A] of [T, B, A]: what all agents of the environment have, zeros for the row's own."""
    steps, rows, size = chosen.shape
    by_env = chosen.reshape((steps, -1, 1, count, size))
    other = ~jnp.eye(count, dtype=bool)[:, :, None]
    return jnp.where(other, by_env, 0.0).reshape((steps, rows, count * size))
