"""Wrappers that repeat each action: rewards are summed, and the end of an episode ends the repetition.

Source: Mnih et al. 2015, methods ("frame skipping"). Observation and infos are those of the last step that was taken.
"""

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any, TypeVar

import gymnasium

from envpool_bridge.envs.io.spaces import MASK, items_of_space
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.native_envpool import NativeEnvPoolSource
from envpool_bridge.envs.one_by_one import OneByOneSource
from envpool_bridge.envs.parallel_env import AgentsWrapper, ParallelEnv, ParallelStep
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

_Action = TypeVar("_Action")


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
    if not isinstance(source, OneByOneSource):
        raise UserError(f"action_repeat needs environments that are made one by one, got a {type(source).__name__}")
    repeated = source.wrapped(ActionRepeatAgents if isinstance(source, ParallelSource) else ActionRepeat, repeat)
    return dataclasses.replace(repeated, action_repeat=source.action_repeat * repeat)


class ActionRepeat(gymnasium.Wrapper):
    """Gymnasium environment that repeats each action.

    Args:
        env: owned by the wrapper.
        repeat: steps of `env` for each step, fewer where an episode ends.

    Raises:
        UserError: If it has action masks.
    """

    def __init__(self, env: gymnasium.Env, repeat: int) -> None:
        _reject_mask(env.observation_space)
        super().__init__(env)
        self._repeat = repeat

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        total: Any
        each = _repeated(action, self._repeat)
        observation, total, terminated, truncated, info = self.env.step(next(each))
        for own in each:
            if terminated or truncated:
                break
            observation, reward, terminated, truncated, info = self.env.step(own)
            total = total + reward  # not in place: the environment may own the array
        return observation, total, terminated, truncated, info


class ActionRepeatAgents(AgentsWrapper):
    """Parallel environment that repeats the actions of all agents.

    A step in which an agent ends or joins is the last repetition.

    Args:
        env: owned by the wrapper.
        repeat: steps of `env` for each step.

    Raises:
        UserError: If its agents take turns, or have action masks.
    """

    def __init__(self, env: ParallelEnv, repeat: int) -> None:
        if isinstance(env, TurnBased):
            raise UserError(f"action_repeat is not for games of turns, {_MOVES}: set it 1")
        for agent in env.possible_agents:
            _reject_mask(env.observation_space(agent))
        super().__init__(env)
        self._repeat = repeat

    def step(self, actions: dict[str, Any]) -> ParallelStep:
        each = _repeated(actions, self._repeat)
        observations, rewards, terminated, truncated, infos = self._env.step(next(each))
        total = dict(rewards)
        for own in each:
            if any(terminated.values()) or any(truncated.values()) or set(self._env.agents) != set(actions):
                break
            observations, rewards, terminated, truncated, infos = self._env.step(own)
            total = {name: total.get(name, 0.0) + reward for name, reward in rewards.items()}
        return observations, total, terminated, truncated, infos


def _reject_mask(observation: gymnasium.Space) -> None:
    if MASK in items_of_space(observation):
        raise UserError(
            "action_repeat is not for environments with action masks, which may change in every step: set it 1"
        )


def _repeated(action: _Action, repeat: int) -> Iterator[_Action]:
    """Yields the action for each repetition: copies, which the environment may change, and at last the action itself."""
    for _ in range(repeat - 1):
        yield copy.deepcopy(action)
    yield action
