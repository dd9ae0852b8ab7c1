"""Wrappers that add the last action and the last reward to observations, as inputs of recurrent policies.

Source: Kapturowski et al. 2019 (R2D2), section 2.3; Espeholt et al. 2018 (arXiv:1802.01561), figure 3. An array becomes the item
"observation" of a Dict, and a Dict keeps its items. The first observation of an episode has reward 0, and an action of zeros, or
of the nearest values that the action space allows.
"""

import copy
import dataclasses
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envpool_bridge.envs.io.spaces import items_of_observation, items_of_space
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.one_by_one import OneByOneSource
from envpool_bridge.envs.parallel_env import AgentsWrapper, ParallelEnv, ParallelReset, ParallelStep
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.errors import UserError

LAST_ACTION, LAST_REWARD = "last_action", "last_reward"


@dataclasses.dataclass(frozen=True)
class LastStep:
    """Choice of the added items.

    Attributes:
        action: whether to add "last_action", with the action's space.
        reward: whether to add "last_reward", a float of shape ().
    """

    action: bool
    reward: bool

    def space(self, env_id: str, observation: gymnasium.Space, action: gymnasium.Space) -> spaces.Dict:
        """Returns the observation's space with the items. Raises UserError if it has items of these names."""
        items = items_of_space(observation)
        added = self._chosen(action, spaces.Box(-np.inf, np.inf, (), np.float32))
        for name in added:
            if name in items:
                raise UserError(f"{env_id}: observations have an item {name!r} of their own: set {name} false")
        return spaces.Dict({**items, **added})

    def added(self, observation: Any, action: Any, reward: Any) -> dict[str, Any]:
        """Returns the observation with the items."""
        return {**items_of_observation(observation), **self._chosen(action, reward)}

    def _chosen(self, action: Any, reward: Any) -> dict[str, Any]:
        return ({LAST_ACTION: action} if self.action else {}) | ({LAST_REWARD: reward} if self.reward else {})


def with_last_step(source: EnvSource, suite: str, chosen: LastStep) -> EnvSource:
    """Returns the source of the same environments with the items in their observations.

    Raises:
        UserError: If its environments are stepped together, by code that no wrapper can enter.
    """
    if not isinstance(source, OneByOneSource):
        raise UserError(
            f"last_action and last_reward are not for suite {suite!r}, whose environments are stepped together"
        )
    return source.wrapped(LastStepAgents if isinstance(source, ParallelSource) else LastStepEnv, chosen)


def first_action(space: gymnasium.Space) -> Any:
    """Returns the action before the first step: zeros, or the nearest values of the space."""
    if isinstance(space, spaces.Dict):
        return {name: first_action(child) for name, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(first_action(child) for child in space.spaces)
    if isinstance(space, spaces.Discrete):
        return space.start
    if isinstance(space, spaces.MultiDiscrete):
        return space.start.copy()
    zeros = np.zeros(space.shape or (), space.dtype)
    return np.clip(zeros, space.low, space.high) if isinstance(space, spaces.Box) else zeros


class LastStepEnv(gymnasium.Wrapper):
    """Gymnasium environment with the last step in its observations.

    Args:
        env: owned by the wrapper.
        chosen: the added items.
    """

    def __init__(self, env: gymnasium.Env, chosen: LastStep) -> None:
        super().__init__(env)
        name = type(env.unwrapped).__name__ if env.spec is None else env.spec.id
        self._chosen, self._first_action = chosen, first_action(env.action_space)
        self.observation_space = chosen.space(name, env.observation_space, env.action_space)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._chosen.added(observation, self._first_action, np.asarray(0.0, np.float32)), info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        taken = copy.deepcopy(action)  # the environment may change its argument
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation = self._chosen.added(observation, taken, np.asarray(reward, np.float32))
        return observation, reward, terminated, truncated, info


class LastStepAgents(AgentsWrapper):
    """Parallel environment with each agent's own last step in its observations.

    An agent that joins has the items of a first observation.

    Args:
        env: owned by the wrapper.
        chosen: the added items.
    """

    def __init__(self, env: ParallelEnv, chosen: LastStep) -> None:
        super().__init__(env)
        self._chosen = chosen

    def observation_space(self, agent: str) -> gymnasium.Space:
        own = self._env.observation_space(agent), self._env.action_space(agent)
        return self._chosen.space(type(self._env).__name__, *own)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> ParallelReset:
        observations, infos = self._env.reset(seed=seed, options=options)
        return self._added(observations, {}, {}), infos

    def step(self, actions: dict[str, Any]) -> ParallelStep:
        taken = copy.deepcopy(actions)
        observations, rewards, terminated, truncated, infos = self._env.step(actions)
        return self._added(observations, taken, rewards), rewards, terminated, truncated, infos

    def _added(self, observations: dict[str, Any], taken: dict[str, Any], rewards: dict[str, float]) -> dict[str, Any]:
        return {
            name: self._chosen.added(
                observation,
                taken[name] if name in taken else first_action(self._env.action_space(name)),
                np.asarray(rewards.get(name, 0.0) if name in taken else 0.0, np.float32),
            )
            for name, observation in observations.items()
        }
