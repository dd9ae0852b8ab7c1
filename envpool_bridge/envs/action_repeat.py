"""Wrappers that repeat each action: rewards are summed, and the end of an episode ends the repetition.

Source: Mnih et al. 2015, methods ("frame skipping"). Observation and infos are those of the last step that was taken.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.native_envpool import NativeEnvPoolSource
from envpool_bridge.envs.parallel_env import ParallelEnv
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.envs.suites.turn_based import TurnBased
from envpool_bridge.errors import UserError

_OWN_OPTION = "set its option frame_skip instead (--env.kwargs.frame_skip N)"
_MOVES = "where a step is one player's move"
_REJECTED = {
    "atari": f"which repeats actions itself: {_OWN_OPTION}",
    "vizdoom": f"which repeats actions itself: {_OWN_OPTION}",
    "atari_vector": f"whose environments are stepped together: {_OWN_OPTION}",
    "gymnasium_vector": "whose environments are stepped together: use suite 'gymnasium'",
    "overcooked": "where a step is a move in a grid",
    "hanabi": _MOVES,
    "pgx": _MOVES,
}


def validate_action_repeat(suite: str, repeat: int) -> None:
    """Raises UserError if environments of the suite cannot repeat actions, or not this often."""
    if repeat < 1:
        raise UserError(f"action_repeat must be at least 1: got {repeat}")
    if repeat > 1 and suite in _REJECTED:
        raise UserError(f"action_repeat is not for suite {suite!r}, {_REJECTED[suite]}")


def with_action_repeat(source: EnvSource, repeat: int) -> EnvSource:
    """Returns the source of the same environments, whose env steps are up to `repeat` steps of theirs."""
    if isinstance(source, NativeEnvPoolSource):
        return source.with_action_repeat(repeat)
    if isinstance(source, GymnasiumSource):
        repeated = source.wrapped(partial(_repeated, repeat))
    elif isinstance(source, ParallelSource):
        repeated = source.wrapped(partial(_repeated_agents, repeat))
    else:
        raise UserError(f"action_repeat needs environments that are made one by one, got a {type(source).__name__}")
    return dataclasses.replace(repeated, action_repeat=source.action_repeat * repeat)


class ActionRepeat(gymnasium.Wrapper):
    """Gymnasium environment that repeats each action.

    Args:
        env: owned by the wrapper.
        repeat: steps of `env` for each step, fewer where an episode ends.
    """

    def __init__(self, env: gymnasium.Env, repeat: int) -> None:
        super().__init__(env)
        self._repeat = repeat

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        total: Any
        observation, total, terminated, truncated, info = self.env.step(action)
        for _ in range(self._repeat - 1):
            if terminated or truncated:
                break
            observation, reward, terminated, truncated, info = self.env.step(action)
            total = total + reward  # not in place: the environment may own the array
        return observation, total, terminated, truncated, info


class ActionRepeatAgents:
    """Parallel environment that repeats the actions of all agents; implements `ParallelEnv`.

    A step in which an agent ends or joins is the last repetition.

    Args:
        env: owned by the wrapper.
        repeat: steps of `env` for each step.

    Raises:
        UserError: its agents take turns.
    """

    def __init__(self, env: ParallelEnv, repeat: int) -> None:
        if isinstance(env, TurnBased):
            raise UserError(f"action_repeat is not for games of turns, {_MOVES}: set it 1")
        self._env, self._repeat = env, repeat

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        observations, rewards, terminated, truncated, infos = self._env.step(actions)
        total = dict(rewards)
        for _ in range(self._repeat - 1):
            if any(terminated.values()) or any(truncated.values()) or set(self._env.agents) != set(actions):
                break
            observations, rewards, terminated, truncated, infos = self._env.step(actions)
            total = {name: total.get(name, 0.0) + reward for name, reward in rewards.items()}
        return observations, total, terminated, truncated, infos


def _repeated(repeat: int, make_env: Callable[..., gymnasium.Env], **kwargs: Any) -> gymnasium.Env:
    return ActionRepeat(make_env(**kwargs), repeat)


def _repeated_agents(repeat: int, make_env: Callable[..., ParallelEnv], **kwargs: Any) -> ParallelEnv:
    return ActionRepeatAgents(make_env(**kwargs), repeat)  # pyright: ignore[reportReturnType]
