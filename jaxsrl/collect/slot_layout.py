"""What an agent adds to the slots of trajectories."""

from typing import Any

import jax

from agents.api import AnyAgent, Trajectory
from envpool_bridge.shm.layout import PoolShape, SlotLayout, field_name, make_layout
from envpool_bridge.spec.specs import ArraySpec, EnvSpec, SpecTree
from envpool_bridge.spec.tree import items, map_leaves, unflatten


def agent_layout(spec: EnvSpec, shape: PoolShape, agent: AnyAgent) -> SlotLayout:
    """Slots that hold what this agent wants of an environment."""
    return make_layout(spec, shape, agent.extras, agent_state_spec(agent))


def agent_state_spec(agent: AnyAgent) -> SpecTree:
    """What a row of this agent's policy remembers, as a tree of ArraySpec; () for a memoryless policy."""
    state = jax.eval_shape(lambda: agent.initial_agent_state(1))
    return map_leaves(lambda leaf: ArraySpec(leaf.shape[1:], leaf.dtype.name), state)


def trajectory_shapes(agent: AnyAgent, spec: EnvSpec, num_rows: int, rollout_length: int) -> Trajectory:
    """A trajectory as slots hold it, of `jax.ShapeDtypeStruct` in place of arrays: frames are single, with their history.

    Args:
        agent: that acts.
        spec: of all rows.
        num_rows: B.
        rollout_length: T.
    """
    whole = PoolShape(1, 1, 1, num_rows, rollout_length, 1)
    layout = agent_layout(spec, whole, agent)
    arrays = {field.name: jax.ShapeDtypeStruct(field.shape, field.dtype) for field in layout.fields}

    def tree(name: str, leaves_of: SpecTree) -> Any:
        return unflatten(leaves_of, [arrays.pop(field_name(name, path)) for path, _ in items(leaves_of)])

    observation, action = tree("observation", spec.observation), tree("action", spec.action)
    of_slot = tree("agent_state", layout.agent_state)
    agent_state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), of_slot)
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
