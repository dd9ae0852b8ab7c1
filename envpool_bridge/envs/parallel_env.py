"""Protocol of a multi-agent environment: PettingZoo's parallel API, without importing PettingZoo."""

from typing import Any, Protocol, runtime_checkable

import gymnasium

ParallelReset = tuple[dict[str, Any], dict[str, dict[str, Any]]]
"""Observations and infos of a reset, by agent."""
ParallelStep = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]
"""Observations, rewards, terminations, truncations and infos of a step, by agent."""


@runtime_checkable
class ParallelEnv(Protocol):
    """Multi-agent environment in which all living agents act at once.

    An agent that has ended leaves `agents`; the episode ends when none is left. An environment may have `state()`, the
    global state for centralized critics, and `state_space`; both are optional.

    Attributes:
        possible_agents: every possible agent, in a fixed order.
        agents: present agents.
    """

    possible_agents: list[str]
    agents: list[str]

    def observation_space(self, agent: str) -> gymnasium.Space:
        """Returns the space of one agent; the same at every call."""
        ...

    def action_space(self, agent: str) -> gymnasium.Space:
        """Returns the space of one agent; the same at every call."""
        ...

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> ParallelReset:
        """Starts an episode; returns observations and infos of the present agents."""
        ...

    def step(self, actions: dict[str, Any]) -> ParallelStep:
        """Steps the environment.

        Returns:
            Observations, rewards, terminations, truncations and infos of the agents that acted, and of those that
            joined.
        """
        ...

    def close(self) -> None:
        """Releases the environment's resources."""
        ...


class AgentsWrapper:
    """Base of wrappers of a parallel environment: passes on what they do not define, and so implements `ParallelEnv`.

    Args:
        env: owned by the wrapper.
    """

    def __init__(self, env: ParallelEnv) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        if name == "_env":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._env, name)


class AlikeAgents:
    """Base of parallel environments whose agents have equal spaces."""

    _observation_space: gymnasium.Space
    _action_space: Any

    def observation_space(self, agent: str) -> gymnasium.Space:
        """Returns the space, which is the same for all agents."""
        del agent
        return self._observation_space

    def action_space(self, agent: str) -> gymnasium.Space:
        """Returns the space, which is the same for all agents."""
        del agent
        return self._action_space
