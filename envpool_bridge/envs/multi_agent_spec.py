"""Specs of the agents of a parallel environment, and of the rows that fit all of them."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envpool_bridge.envs.io.spaces import items_of_observation, items_of_space, spec_of_spaces
from envpool_bridge.envs.parallel_env import ParallelEnv
from envpool_bridge.errors import UserError
from envpool_bridge.spec.padding import padded_spec
from envpool_bridge.spec.specs import AgentSpec, EnvSpec

STATE = "state"  # leaf of the observation that only a value function may see


def parallel_spec(env: ParallelEnv, env_id: str, global_state: bool) -> EnvSpec:
    """Returns the spec of a row: one agent of the environment.

    Args:
        env: any instance.
        env_id: Environment id for messages.
        global_state: whether observations include the environment's `state()` as their leaf "state".

    Raises:
        UnsupportedSpaceError: If a space cannot be stored, or the agents' spaces are too different to share rows.
        UserError: If the environment has no agents, or no global state that can be recorded.
    """
    if not env.possible_agents:
        raise UserError(f"{env_id}: expected possible_agents to name every possible agent, got none")
    state = _state_space(env, env_id) if global_state else None
    agents = tuple(_agent_spec(env, env_id, name, state) for name in env.possible_agents)
    names = [agent.name for agent in agents]
    masks = {agent.action_mask for agent in agents}
    return EnvSpec(
        env_id,
        padded_spec("observation", names, [agent.observation for agent in agents]),
        padded_spec("action", names, [agent.action for agent in agents]),
        action_mask=masks.pop() if len(masks) == 1 else (),
        agents=agents,
        critic_only=(STATE,) if global_state else (),
    )


def with_state(env: ParallelEnv, observations: dict[str, Any]) -> dict[str, Any]:
    """Adds the environment's global state to each agent's observation."""
    state = np.asarray(env.state())  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]
    return {name: {**items_of_observation(own), STATE: state} for name, own in observations.items()}


def validate_whole_envs(spec: EnvSpec, row_ids: Sequence[int]) -> None:
    """Raises UserError if the rows of these ids split an environment."""
    if len(row_ids) % spec.rows_per_env or row_ids[0] % spec.rows_per_env:
        problem = f"expected rows of whole environments, got {len(row_ids)} from row {row_ids[0]}"
        raise UserError(f"{spec.env_id} has {spec.rows_per_env} agents, each a row: {problem}")


def _agent_spec(env: ParallelEnv, env_id: str, name: str, state: gymnasium.Space | None) -> AgentSpec:
    observed = env.observation_space(name)
    if state is not None:
        own = items_of_space(observed)
        if STATE in own:
            raise UserError(f"{env_id}: agent {name} already observes an item {STATE!r}: use global_state false")
        observed = spaces.Dict({**own, STATE: state})
    spec = spec_of_spaces(observed, env.action_space(name), f"{env_id}, agent {name}", 1)
    return AgentSpec(name, spec.observation, spec.action, spec.action_mask)


def _state_space(env: ParallelEnv, env_id: str) -> gymnasium.Space:
    """Returns the environment's `state_space`, or the space of the state after a reset."""
    space = getattr(env, "state_space", None)
    if isinstance(space, gymnasium.Space):
        return space
    if not callable(getattr(env, "state", None)):
        raise UserError(f"{env_id} offers no global state (a method state()): use global_state false")
    env.reset(seed=0)
    try:
        state = np.asarray(env.state())  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]
    except NotImplementedError as error:  # raised by PettingZoo's base class
        raise UserError(f"{env_id} offers no global state ({error}): use global_state false") from error
    return spaces.Box(-np.inf, np.inf, state.shape, state.dtype.type)
