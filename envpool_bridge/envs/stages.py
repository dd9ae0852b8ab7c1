"""Environments of several stages: the stage of a reset chooses which of them the episode is played in."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium

from envpool_bridge.envs.closing import close_each
from envpool_bridge.envs.mixed_rows import MixedSource, settings_difference
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.one_by_one import OneByOneSource
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec, describe_leaves


def staged_source(sources: Sequence[EnvSource], env_id: str) -> OneByOneSource:
    """Returns a source of environments with a stage for each of `sources`. Makes one environment of each.

    The last stage gives the spaces and the agents. Agents that an earlier stage lacks are absent in its episodes.

    Args:
        sources: Sources of stages 0, 1, ...
        env_id: name for messages and run directories.

    Raises:
        UserError: fewer than two stages, environments that are stepped together, or unequal spaces or settings.
    """
    if len(sources) < 2:
        raise UserError(f"stages need at least two environments: got {len(sources)}")
    last = sources[-1]
    if not isinstance(last, OneByOneSource):
        raise UserError(f"stages are not for {env_id}, whose environments are stepped together")
    expected = last.spec()
    makers: list[Callable[..., Any]] = []
    evaluated: list[Callable[..., Any]] = []
    for number, source in enumerate(sources):
        if type(source) is not type(last):
            raise UserError(f"stage {number} of {env_id} has environments of another kind than the last one")
        problem = _difference(source.spec(), expected) or settings_difference(last, source, ("stage",))
        if problem:
            raise UserError(
                f"stages need equal spaces and settings: stage {number} of {env_id} differs from the last one: {problem}"
            )
        same_kind: Any = source
        makers.append(same_kind.make_env)
        evaluated.append(same_kind.for_evaluation().make_env)
    kind = StagedParallelEnv if isinstance(last, ParallelSource) else StagedEnv
    made, whole_games = (partial[Any](kind, tuple(each), env_id) for each in (makers, evaluated))
    return dataclasses.replace(last, make_env=made, env_id=env_id, evaluation_env=whole_games)


def at_stage(source: EnvSource, stage: int | None) -> EnvSource:
    """Returns the source of the same environments, whose resets have this stage at first; unchanged for None.

    Raises:
        UserError: environments that are stepped together, which receive no stage.
    """
    if stage is None:
        return source
    if isinstance(source, MixedSource):
        changed = tuple(dataclasses.replace(each, stage=stage) for each in source.sources)
        return MixedSource(changed, dataclasses.replace(source.row_spec, stage=stage))
    if not hasattr(source, "stage"):
        raise UserError(f"environments that are stepped together receive no stage: got stage {stage}")
    changed_source: Any = dataclasses.replace(source, stage=stage)  # pyright: ignore[reportArgumentType]
    return changed_source


def _difference(given: EnvSpec, expected: EnvSpec) -> str:
    """Describes the first difference of a stage's spaces from those of the last stage; "" if there is none."""
    agents = {agent.name: agent for agent in expected.agents}
    for agent in given.agents:
        if agent != agents.get(agent.name):
            known = "another space" if agent.name in agents else "no place"
            return f"its agent {agent.name} has {known} in the last stage"
    for field in () if agents else ("observation", "action", "action_mask"):
        own, wanted = getattr(given, field), getattr(expected, field)
        if own != wanted:
            shown = field != "action_mask"
            return f"{field} is {describe_leaves(field, own) if shown else own}, not " + (
                f"{describe_leaves(field, wanted)}" if shown else f"{wanted}"
            )
    return ""


class _Stages:
    """Environment of several stages; the environment of each is made at its first episode.

    Args:
        makers: make the environment of stages 0, 1, ...
        env_id: name for messages.
        render_mode: Render mode of all environments; None makes them without one.
    """

    def __init__(self, makers: Sequence[Callable[..., Any]], env_id: str, render_mode: str | None = None) -> None:
        self._makers, self._env_id = makers, env_id
        self._options = {} if render_mode is None else {"render_mode": render_mode}
        self._made: dict[int, Any] = {}
        self._last = self._current = self._at(len(makers) - 1)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Starts an episode of the stage `options["stage"]`; of the last stage without it.

        Raises:
            UserError: If there is no such stage.
        """
        others = dict(options or {})
        self._current = self._at(int(others.pop("stage", len(self._makers) - 1)))
        return self._current.reset(seed=seed, options=others or None)

    def step(self, action: Any) -> Any:
        """Steps the environment of the episode's stage."""
        return self._current.step(action)

    def render(self) -> Any:
        """Renders the environment of the episode's stage."""
        return self._current.render()

    def close(self) -> None:
        """Closes all environments; idempotent."""
        made, self._made = self._made, {}
        close_each(made.values())

    def _at(self, stage: int) -> Any:
        if not 0 <= stage < len(self._makers):
            raise UserError(f"{self._env_id} has stages 0 to {len(self._makers) - 1}: got {stage}")
        if stage not in self._made:
            self._made[stage] = self._makers[stage](**self._options)
        return self._made[stage]


class StagedEnv(_Stages, gymnasium.Env):  # pyright: ignore[reportIncompatibleMethodOverride]  seeds may be positional
    """Gymnasium environment of several stages with equal spaces.

    Every reset needs a seed for results that can be repeated: the environments of the stages have generators of their own.
    """

    def __init__(self, makers: Sequence[Callable[..., Any]], env_id: str, render_mode: str | None = None) -> None:
        super().__init__(makers, env_id, render_mode)
        last = self._last
        self.observation_space, self.action_space = last.observation_space, last.action_space
        self.metadata, self.spec, self.render_mode = last.metadata, last.spec, last.render_mode


class StagedParallelEnv(_Stages):
    """Environment of several agents and several stages, with PettingZoo's parallel API; the last stage has all agents.

    Attributes:
        possible_agents: those of the last stage.
        metadata: Metadata of the last stage.
    """

    def __init__(self, makers: Sequence[Callable[..., Any]], env_id: str, render_mode: str | None = None) -> None:
        super().__init__(makers, env_id, render_mode)
        self.possible_agents, self.metadata = self._last.possible_agents, getattr(self._last, "metadata", {})

    @property
    def agents(self) -> list[str]:
        """Agents present in the episode."""
        return self._current.agents

    def observation_space(self, agent: str) -> gymnasium.Space:
        """Returns the agent's space."""
        return self._last.observation_space(agent)

    def action_space(self, agent: str) -> gymnasium.Space:
        """Returns the agent's space."""
        return self._last.action_space(agent)

    def __getattr__(self, name: str) -> Any:
        """Returns what else the environment of the episode's stage offers: `state`, `state_space`."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._current, name)
