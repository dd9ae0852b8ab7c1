"""Vector environments by the id of an environment, as `gymnasium.make_vec` makes them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from envpool_bridge.vector_env.pool_vector_env import PoolVectorEnv

WrapEnv = Callable[[gymnasium.Env], gymnasium.Env]


def make_vec(
    id: str | EnvSpec,
    num_envs: int = 1,
    *,
    vector_kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[WrapEnv] = (),
    **kwargs: Any,
) -> PoolVectorEnv:
    """Returns a pool of environments of one id.

    Args:
        id: as `gymnasium.make` takes it.
        num_envs: number of environments.
        vector_kwargs: arguments of PoolVectorEnv.
        wrappers: applied to every environment, the first one innermost.
        **kwargs: further arguments of `gymnasium.make`.
    """
    return PoolVectorEnv(partial(_make, id, tuple(wrappers), kwargs), num_envs, **(vector_kwargs or {}))


def _make(
    id: str | EnvSpec,
    wrappers: Sequence[WrapEnv],
    kwargs: dict[str, Any],
) -> gymnasium.Env:
    env = gymnasium.make(id, **kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return env
