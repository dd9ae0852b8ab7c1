"""Any id of Gymnasium's registry as it is: classic control, Box2D, MuJoCo, and what a user's script registers."""

from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as Registration

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.io.action_mask import MaskFromInfo
from envpool_bridge.envs.suites.registry import registration
from envpool_bridge.envs.vector_env import VectorSource
from envpool_bridge.errors import UserError


def gymnasium_source(
    env_id: str, kwargs: dict[str, Any], check_range: bool, mask_from_info: bool = False
) -> GymnasiumSource:
    """Rows of one environment object each.

    What the id means is looked up here and sent along, so that an id which only the user's script registers works in
    processes that never run that script.

    Raises:
        UserError: unknown id, or a package that it needs is missing.
    """
    make = partial(make_gymnasium, registration(env_id), kwargs, mask_from_info)
    return GymnasiumSource(make, env_id, check_range=check_range)


def gymnasium_vector_source(env_id: str, kwargs: dict[str, Any], check_range: bool) -> VectorSource:
    """Rows of Gymnasium's vectorised version. Raises UserError as `gymnasium_source` does."""
    return VectorSource(partial(make_vector, registration(env_id), kwargs), env_id, check_range=check_range)


def make_gymnasium(
    env_id: str | Registration, kwargs: dict[str, Any], mask_from_info: bool = False, render_mode: str | None = None
) -> gymnasium.Env:
    """`gymnasium.make` without its passive checker: what it would warn of, we refuse.

    Args:
        env_id: the id, or what is registered under it.
        kwargs: further arguments of `gymnasium.make`.
        mask_from_info: whether the legal actions that infos tell become part of the observation: see `MaskFromInfo`.
        render_mode: as of `gymnasium.make`; None takes what `kwargs` say.

    Raises:
        UserError: the environment does not take these arguments, needs a package that is not installed, or has actions that
            cannot be masked.
    """
    found = registration(env_id) if isinstance(env_id, str) else env_id
    given = kwargs if render_mode is None else {**kwargs, "render_mode": render_mode}
    try:
        env = gymnasium.make(found, disable_env_checker=True, **given)
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(f"{found.id}: {error}") from error
    except TypeError as error:
        if not kwargs or "unexpected keyword" not in str(error):
            raise
        raise UserError(f"{found.id}: bad kwargs {kwargs}: {error}") from error
    return MaskFromInfo(env) if mask_from_info else env


def make_vector(env_id: str | Registration, kwargs: dict[str, Any], num_envs: int) -> gymnasium.vector.VectorEnv:
    """Gymnasium's vectorised version of the id, its own implementation where it has one."""
    found = registration(env_id) if isinstance(env_id, str) else env_id
    return gymnasium.make_vec(found, num_envs=num_envs, **kwargs)
