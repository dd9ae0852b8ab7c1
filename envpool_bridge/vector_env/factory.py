"""Vector environments by the id of an environment, as `gymnasium.make_vec` makes them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, VectorizeMode

from envpool_bridge.envs.suites.registry import for_workers, newest_registration
from envpool_bridge.errors import UserError
from envpool_bridge.vector_env.pool_vector_env import PoolVectorEnv

WrapEnv = Callable[[gymnasium.Env], gymnasium.Env]


def make_vec(
    id: str | EnvSpec,
    num_envs: int = 1,
    vectorization_mode: VectorizeMode | str | None = None,
    vector_kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[WrapEnv] | None = None,
    **kwargs: Any,
) -> PoolVectorEnv:
    """Returns a pool of environments of one id.

    The registration is looked up here and sent along, because workers never run the script that registers an id.

    Args:
        id: an id or "module:id" of Gymnasium's registry, or a registration.
        num_envs: number of environments.
        vectorization_mode: accepted for the callers of `gymnasium.make_vec`: None, "sync" and "async" all make a pool.
        vector_kwargs: arguments of PoolVectorEnv.
        wrappers: applied to every environment, the first one innermost.
        **kwargs: further arguments of `gymnasium.make`.

    Raises:
        UserError: unknown id, a missing package, another `vectorization_mode`, or as PoolVectorEnv.
    """
    if vectorization_mode not in (None, VectorizeMode.SYNC, VectorizeMode.ASYNC, "sync", "async"):
        raise UserError(f"vectorization_mode must be None, 'sync' or 'async' for a pool, got {vectorization_mode!r}")
    registered = newest_registration(id) if isinstance(id, str) else for_workers(id)
    return PoolVectorEnv(partial(_make, registered, tuple(wrappers or ()), kwargs), num_envs, **(vector_kwargs or {}))


def _make(
    registered: EnvSpec,
    wrappers: Sequence[WrapEnv],
    kwargs: dict[str, Any],
) -> gymnasium.Env:
    env = gymnasium.make(registered, **kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return env
