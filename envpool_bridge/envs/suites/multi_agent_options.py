"""Options of every suite of multi-agent environments."""

import dataclasses
from collections.abc import Callable
from typing import Any

from envpool_bridge.envs.multi_agent_env import ParallelSource, TeamReward
from envpool_bridge.envs.parallel_env import ParallelEnv


@dataclasses.dataclass(frozen=True)
class TeamOptions:
    """Options that all agents of an environment share.

    Attributes:
        team_reward: "own" gives every agent its reward; "sum" and "mean" give all agents that of the team.
        global_state: whether the environment's global state is recorded, which only value functions see.
    """

    team_reward: TeamReward = "own"
    global_state: bool = False


def split_kwargs(kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits kwargs into (fields of TeamOptions, all others)."""
    names = {field.name for field in dataclasses.fields(TeamOptions)}
    own = {name: value for name, value in kwargs.items() if name in names}
    return own, {name: value for name, value in kwargs.items() if name not in names}


def team_source(
    make_env: Callable[[], ParallelEnv],
    env_id: str,
    options: TeamOptions,
    strict: bool,
    evaluation_env: Callable[[], ParallelEnv] | None = None,
) -> ParallelSource:
    """Returns the source of the environment's agents with these options."""
    return ParallelSource(
        make_env, env_id, options.team_reward, options.global_state, strict, evaluation_env=evaluation_env
    )
