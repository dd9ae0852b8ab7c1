"""Slot layout for the outputs and the recurrent state of an agent."""

from typing import Any

import jax

from agents.api import AnyAgent, Trajectory
from envpool_bridge.shm.layout import PoolShape, SlotLayout, field_name, make_layout
from envpool_bridge.spec.specs import ArraySpec, EnvSpec, SpecTree
from envpool_bridge.spec.tree import items, map_leaves, unflatten


def agent_layout(spec: EnvSpec, shape: PoolShape, agent: AnyAgent) -> SlotLayout:
    """Returns the layout of slots for an agent in an environment."""
    return make_layout(spec, shape, agent.extras, agent_state_spec(agent))


def agent_state_spec(agent: AnyAgent) -> SpecTree:
    """Returns the recurrent state of one row as a tree of ArraySpec; () for an agent without memory."""
    state = jax.eval_shape(lambda: agent.initial_agent_state(1))
    return map_leaves(lambda leaf: ArraySpec(leaf.shape[1:], leaf.dtype.name), state)


def trajectory_shapes(agent: AnyAgent, spec: EnvSpec, num_rows: int, rollout_length: int) -> Trajectory:
    """Returns the trajectory in a slot as `jax.ShapeDtypeStruct`s; frames are single, with their history.

    Args:
        agent: agent that acts.
        spec: spec of all rows.
        num_rows: B.
        rollout_length: T.
    """
    shape = PoolShape(1, 1, 1, num_rows, rollout_length, 1)
    layout = agent_layout(spec, shape, agent)
    arrays = {field.name: jax.ShapeDtypeStruct(field.shape, field.dtype) for field in layout.fields}

    def tree(name: str, spec_tree: SpecTree) -> Any:
        return unflatten(spec_tree, [arrays.pop(field_name(name, path)) for path, _ in items(spec_tree)])

    observation, action = tree("observation", spec.observation), tree("action", spec.action)
    slot_state = tree("agent_state", layout.agent_state)
    agent_state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), slot_state)
    extras = {name.removeprefix("extras/"): arrays.pop(name) for name in list(arrays) if name.startswith("extras/")}
    for name in ("incarnation", "stepped_at", *(f"infos/{field}" for field in spec.info_fields)):
        arrays.pop(name)
    return Trajectory(
        observation=observation,
        action=action,
        extras=extras,  # pyright: ignore[reportArgumentType]
        agent_state=agent_state,
        **arrays,  # pyright: ignore[reportArgumentType]
    )
