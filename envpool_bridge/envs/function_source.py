"""Environment sources made from functions that make one environment."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium

from envpool_bridge.envs.function_name import function_name
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.parallel_env import ParallelEnv
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.envs.suites.pettingzoo import as_parallel
from envpool_bridge.errors import UserError

MakeEnv = Callable[[], gymnasium.Env] | Callable[[], ParallelEnv]
"""Function, closure, lambda, partial or class that makes one environment of Gymnasium or PettingZoo."""
AnyEnv = EnvSource | MakeEnv


def as_source(env: AnyEnv) -> EnvSource:
    """Returns a source unchanged, or the source of a function's environments. Makes one of them to detect its kind.

    Raises:
        UserError: If it is neither a source nor such a function.
    """
    if hasattr(env, "make_rows"):
        return env  # pyright: ignore[reportReturnType]
    if not callable(env):
        raise UserError(f"expected an EnvConfig, a source, or a function that makes one environment, got {env!r}")
    make: Callable[[], Any] = env
    made = make()
    if hasattr(made, "possible_agents"):
        made.close()
        return ParallelSource(partial(_make_parallel, make), type(made).__name__)
    if hasattr(made, "observation_space") and hasattr(made, "step"):
        made.close()
        return GymnasiumSource(make)
    if hasattr(made, "close"):
        made.close()
    raise UserError(
        f"{function_name(make)} does not make an environment: expected one of Gymnasium or PettingZoo, got {type(made).__name__}"
    )


def _make_parallel(make: Callable[[], Any]) -> ParallelEnv:
    env = make()
    return as_parallel(env, type(env).__name__)
