"""What an agent adds to the slots of trajectories."""

import jax

from agents.api import Agent
from envpool_bridge.layout import PoolShape, SlotLayout, make_layout
from envpool_bridge.specs import ArraySpec, EnvSpec, SpecTree
from envpool_bridge.tree import map_leaves


def agent_layout(spec: EnvSpec, shape: PoolShape, agent: Agent) -> SlotLayout:
    """Slots that hold what this agent wants of an environment."""
    return make_layout(spec, shape, agent.extras, agent_state_spec(agent))


def agent_state_spec(agent: Agent) -> SpecTree:
    """What a row of this agent's policy remembers, as a tree of ArraySpec; () for a memoryless policy."""
    state = jax.eval_shape(lambda: agent.initial_agent_state(1))
    return map_leaves(lambda leaf: ArraySpec(leaf.shape[1:], leaf.dtype.name), state)
