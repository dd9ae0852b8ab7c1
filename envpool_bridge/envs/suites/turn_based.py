"""Turn-based games as parallel environments: all agents act at every step, and those not to move have one legal action."""

from typing import Any

import numpy as np
from gymnasium import spaces

from envpool_bridge.envs.io.action_mask import read_mask
from envpool_bridge.envs.io.spaces import MASK, items_of_observation, items_of_space
from envpool_bridge.envs.parallel_env import ParallelReset, ParallelStep
from envpool_bridge.errors import UserError


class RewardsOfLast:
    """An AEC environment whose `rewards` are what the newest move added to the rewards that `last()` returns.

    By PettingZoo's definition, they are equal to the environment's own `rewards`, which some games do not set.

    Args:
        env: an AEC environment.

    Attributes:
        rewards: Rewards of each agent; also of the steps that remove ended agents after the move.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._before: dict[str, float] = {}
        self.rewards: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        if name == "_env":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._env, name)

    def step(self, action: Any) -> None:
        env = self._env
        if action is not None:  # the rewards of the agent to move have been returned by `last()`
            self._before = {**env._cumulative_rewards, env.agent_selection: 0.0}
        env.step(action)
        self.rewards = {name: total - self._before.get(name, 0.0) for name, total in env._cumulative_rewards.items()}


class TurnBased:
    """A PettingZoo AEC environment, one move in each step. Implements `ParallelEnv`.

    An agent observes the game's observation and "action_mask". The mask of the agent to move is the game's own,
    from the observation or the info; all actions if it has none. The others have action 0 alone, which is ignored.

    Args:
        env: an AEC environment.
        env_id: Environment id for messages.

    Attributes:
        possible_agents: the game's.
        agents: those still in the game.
        metadata: the game's.

    Raises:
        UserError: If an agent's actions are not Discrete, so a mask cannot mark the legal ones.
    """

    def __init__(self, env: Any, env_id: str = "") -> None:
        self._env: Any = RewardsOfLast(env)
        self.possible_agents: list[str] = list(env.possible_agents)
        self.agents: list[str] = []
        self.metadata: dict[str, Any] = getattr(env, "metadata", {})
        for name in self.possible_agents:
            if not isinstance(env.action_space(name), spaces.Discrete):
                raise UserError(
                    f"{env_id}: agents take turns, and {name} acts in {env.action_space(name)}: expected a Discrete, in which "
                    f"waiting agents have one legal action"
                )

    def observation_space(self, agent: str) -> spaces.Space:
        """Returns the game's own items (or "observation", if it is one array) and "action_mask"."""
        own = items_of_space(self._env.observation_space(agent))
        return spaces.Dict({**own, MASK: spaces.MultiBinary(self._num_actions(agent))})

    def action_space(self, agent: str) -> spaces.Space:
        return self._env.action_space(agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> ParallelReset:
        self._env.reset(seed=seed, options=options)
        self.agents = list(self._env.agents)
        return {name: self._observation(name) for name in self.agents}, {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> ParallelStep:
        """Applies the move of the agent to move."""
        env, playing = self._env, self.agents
        env.step(actions[env.agent_selection])
        rewards = {name: env.rewards[name] for name in playing}
        terminations = {name: bool(env.terminations[name]) for name in playing}
        truncations = {name: bool(env.truncations[name]) for name in playing}
        infos = {name: dict(env.infos[name]) for name in playing}
        observations = {name: self._observation(name) for name in playing}  # the last observation of agents that end
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)  # AEC removes ended agents one by one, each at its turn
        self.agents = [name for name in env.agents if not (env.terminations[name] or env.truncations[name])]
        rewards |= {name: env.rewards[name] for name in self.agents}
        observations |= {name: self._observation(name) for name in self.agents if len(self.agents) < len(playing)}
        return observations, rewards, terminations, truncations, infos

    def state(self) -> np.ndarray:
        """Returns the game's global state. Raises NotImplementedError if it has none."""
        return self._env.state()

    def render(self) -> Any:
        """Returns the game's picture."""
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def _num_actions(self, agent: str) -> int:
        return int(self._env.action_space(agent).n)

    def _observation(self, agent: str) -> dict[str, Any]:
        shown = items_of_observation(self._env.observe(agent))
        env, size = self._env, self._num_actions(agent)
        if agent == env.agent_selection and not (env.terminations[agent] or env.truncations[agent]):
            legal = shown.get(MASK, env.infos[agent].get(MASK, np.ones(size, np.int8)))
            return {**shown, MASK: read_mask(legal, size, f"the mask of {agent}")}
        return {**shown, MASK: np.eye(1, size, dtype=np.int8)[0]}
