"""An agent that acts for some of the agents of its environment."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from agents.api import AgentState, AnyAgent, Array, Mode, Params
from agents.transforms.multi_policy import select_rows
from envpool_bridge.spec.specs import EnvSpec


def act_for_some(agent: AnyAgent, spec: EnvSpec, indices: Sequence[int]) -> AnyAgent:
    """Returns an agent that acts for the rows of some agents, [E * len(indices), ...], as `agent` does among all rows.

    In place of the other agents' rows it acts for those of the first one again, and drops the actions.

    Args:
        agent: Agent that acts for all rows of environments, such as one of several policies.
        spec: Spec of all rows.
        indices: Indices of the agents in `EnvSpec.agents`.
    """
    places = tuple(indices.index(row) if row in indices else 0 for row in range(spec.rows_per_env))
    select = partial(select_rows, spec.rows_per_env, 0, tuple(indices))
    spread = partial(select_rows, len(indices), 0, places)

    def initial_agent_state(num_rows: int) -> AgentState:
        num_envs = num_rows // len(indices)
        return jax.tree.map(select, agent.initial_agent_state(num_envs * spec.rows_per_env))

    def act(
        params: Params, observation: Any, agent_state: AgentState, is_first: Array, keys: Array, mode: Mode
    ) -> tuple[Any, dict[str, Array], AgentState]:
        observation, agent_state, is_first, keys = jax.tree.map(spread, (observation, agent_state, is_first, keys))
        return jax.tree.map(select, agent.act(params, observation, agent_state, is_first, keys, mode))

    return agent._replace(initial_agent_state=initial_agent_state, act=act)
