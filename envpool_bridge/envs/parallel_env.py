"""What a multi-agent environment must be: PettingZoo's parallel API, by shape; nothing of PettingZoo is imported."""

from typing import Any, Protocol, runtime_checkable

import gymnasium


@runtime_checkable
class ParallelEnv(Protocol):
    """All living agents act at once; an agent that has ended leaves `agents`, and the episode ends when none is left.

    An environment may have `state()`, the global state for centralised critics, with `state_space`; both are optional.

    Attributes:
        possible_agents: every agent there may ever be, in a fixed order.
        agents: those that are there now.
    """

    possible_agents: list[str]
    agents: list[str]

    def observation_space(self, agent: str) -> gymnasium.Space:
        """Of one agent; the same at every call."""
        ...

    def action_space(self, agent: str) -> gymnasium.Space:
        """Of one agent; the same at every call."""
        ...

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Begins an episode: observations and infos of the agents that are there."""
        ...

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Observations, rewards, terminations, truncations and infos of the agents that acted, and of those that joined."""
        ...

    def close(self) -> None:
        """Frees what the environment holds."""
        ...
