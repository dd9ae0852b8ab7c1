"""Wrapper that moves action masks from the infos of a parallel environment into its observations."""

from typing import Any

import numpy as np
from gymnasium import spaces

from envpool_bridge.envs.io.spaces import MASK
from envpool_bridge.envs.parallel_env import ParallelEnv


def with_masks_of_infos(env: ParallelEnv) -> ParallelEnv:
    """Wraps the environment if its infos have action masks; resets it to detect them."""
    _, infos = env.reset()
    return InfoMasks(env) if any(MASK in info for info in infos.values()) else env


class InfoMasks:
    """Adds `infos[agent]["action_mask"]` to every observation; without a mask every action is legal.

    Implements `ParallelEnv`.

    Args:
        env: owned by the wrapper.

    Attributes:
        possible_agents: the environment's.
        agents: present agents.
        metadata: the environment's.
    """

    def __init__(self, env: ParallelEnv) -> None:
        self._env = env
        self.possible_agents = env.possible_agents
        self.agents: list[str] = []
        self.metadata: dict[str, Any] = getattr(env, "metadata", {})

    def observation_space(self, agent: str) -> spaces.Space:
        """Returns the environment's own items (or "observation", if it is one array) and "action_mask"."""
        own = self._env.observation_space(agent)
        shown = dict(own.spaces) if isinstance(own, spaces.Dict) else {"observation": own}
        return spaces.Dict({**shown, MASK: spaces.MultiBinary(self._num_values(agent))})

    def action_space(self, agent: str) -> spaces.Space:
        return self._env.action_space(agent)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        observations, infos = self._env.reset(seed=seed, options=options)
        self.agents = list(self._env.agents)
        return self._masked(observations, infos), infos

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        observations, rewards, terminations, truncations, infos = self._env.step(actions)
        self.agents = list(self._env.agents)
        return self._masked(observations, infos), rewards, terminations, truncations, infos

    def state(self) -> np.ndarray:
        """Returns the environment's global state."""
        return self._env.state()  # pyright: ignore[reportAttributeAccessIssue]

    def render(self) -> Any:
        """Returns the environment's picture."""
        return self._env.render()  # pyright: ignore[reportAttributeAccessIssue]

    def close(self) -> None:
        self._env.close()

    def _num_values(self, agent: str) -> int:
        space = self._env.action_space(agent)
        return int(space.nvec.sum()) if isinstance(space, spaces.MultiDiscrete) else int(space.n)  # pyright: ignore[reportAttributeAccessIssue]

    def _masked(self, observations: dict[str, Any], infos: dict[str, dict[str, Any]]) -> dict[str, Any]:
        return {name: self._with_mask(name, shown, infos.get(name, {})) for name, shown in observations.items()}

    def _with_mask(self, agent: str, shown: Any, info: dict[str, Any]) -> dict[str, Any]:
        every = np.ones(self._num_values(agent), np.int8)
        mask = np.asarray(info.get(MASK, every), np.int8)
        return {**(shown if isinstance(shown, dict) else {"observation": shown}), MASK: mask}
