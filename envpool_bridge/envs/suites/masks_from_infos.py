"""Wrapper that moves action masks from the infos of a parallel environment into its observations."""

from typing import Any

import numpy as np
from gymnasium import spaces

from envpool_bridge.envs.io.action_mask import read_mask
from envpool_bridge.envs.io.spaces import MASK, items_of_observation, items_of_space
from envpool_bridge.envs.parallel_env import AgentsWrapper, ParallelEnv, ParallelReset, ParallelStep


def with_masks_of_infos(env: ParallelEnv) -> ParallelEnv:
    """Wraps the environment: masks in the infos of its reset count, masks that appear later are an error. Resets it."""
    observations, infos = env.reset()
    wrapper = InfoMasks if _have_masks(infos) else _NoInfoMasks
    has_own = any(isinstance(shown, dict) and MASK in shown for shown in observations.values())
    return env if wrapper is _NoInfoMasks and has_own else wrapper(env)  # pyright: ignore[reportReturnType]


def _have_masks(infos: dict[str, dict[str, Any]]) -> bool:
    return any(isinstance(info, dict) and MASK in info for info in infos.values())


class _NoInfoMasks(AgentsWrapper):
    """An environment whose first infos have no action masks, with which the form of observations is decided."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> ParallelReset:
        observations, infos = self._env.reset(seed=seed, options=options)
        self._reject_masks(infos)
        return observations, infos

    def step(self, actions: dict[str, Any]) -> ParallelStep:
        result = self._env.step(actions)
        if isinstance(result, tuple) and isinstance(result[-1], dict):  # rows validate the form
            self._reject_masks(result[-1])
        return result

    def _reject_masks(self, infos: dict[str, dict[str, Any]]) -> None:
        if _have_masks(infos):
            raise ValueError(
                f"expected infos without {MASK!r}, as at the first reset of this environment, got one: return masks with every "
                f"reset too (ones, where all actions are legal), or never"
            )


class InfoMasks(AgentsWrapper):
    """Adds `infos[agent]["action_mask"]` to every observation; without a mask every action is legal."""

    state_space = None  # not the environment's: a global state has the space of the state after a reset

    def observation_space(self, agent: str) -> spaces.Space:
        """Returns the environment's own items (or "observation", if it is one array) and "action_mask"."""
        own = items_of_space(self._env.observation_space(agent))
        return spaces.Dict({**own, MASK: spaces.MultiBinary(self._num_values(agent))})

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> ParallelReset:
        observations, infos = self._env.reset(seed=seed, options=options)
        return self._masked(observations, infos), infos

    def step(self, actions: dict[str, Any]) -> ParallelStep:
        observations, rewards, terminations, truncations, infos = self._env.step(actions)
        return self._masked(observations, infos), rewards, terminations, truncations, infos

    def _num_values(self, agent: str) -> int:
        space = self._env.action_space(agent)
        return int(space.nvec.sum()) if isinstance(space, spaces.MultiDiscrete) else int(space.n)  # pyright: ignore[reportAttributeAccessIssue]

    def _masked(self, observations: dict[str, Any], infos: dict[str, dict[str, Any]]) -> dict[str, Any]:
        return {name: self._with_mask(name, shown, infos.get(name, {})) for name, shown in observations.items()}

    def _with_mask(self, agent: str, shown: Any, info: dict[str, Any]) -> dict[str, Any]:
        size = self._num_values(agent)
        mask = info.get(MASK, np.ones(size, np.int8))
        return {**items_of_observation(shown), MASK: read_mask(mask, size, f"infos[{agent!r}][{MASK!r}]")}
