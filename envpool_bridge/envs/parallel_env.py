"""Protocol of a multi-agent environment: PettingZoo's parallel API, without importing PettingZoo."""

from typing import Any, Protocol, runtime_checkable

import gymnasium


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

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Starts an episode; returns observations and infos of the present agents."""
        ...

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Steps the environment.

        Returns:
            Observations, rewards, terminations, truncations and infos of the agents that acted, and of those that
            joined.
        """
        ...

    def close(self) -> None:
        """Releases the environment's resources."""
        ...
