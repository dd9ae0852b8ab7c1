"""Any id of Gymnasium's registry: classic control, Box2D, MuJoCo, and ids that a user's script registers."""

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
    env_id: str, kwargs: dict[str, Any], strict: bool, mask_from_info: bool = False
) -> GymnasiumSource:
    """Returns the source of single environments.

    The registration is looked up here and sent along. An id that only the user's script registers then works in
    processes that never run that script.

    Raises:
        UserError: unknown id, or a package that it needs is missing.
    """
    make = partial(_make, registration(env_id), kwargs, mask_from_info)
    return GymnasiumSource(make, env_id, strict=strict)


def gymnasium_vector_source(env_id: str, kwargs: dict[str, Any], strict: bool) -> VectorSource:
    """Returns the source of Gymnasium's vectorized version. Raises UserError as `gymnasium_source` does."""
    return VectorSource(partial(gymnasium.make_vec, registration(env_id), **kwargs), env_id, strict=strict)


def _make(
    registered: Registration, kwargs: dict[str, Any], mask_from_info: bool, render_mode: str | None = None
) -> gymnasium.Env:
    """Calls `gymnasium.make` without its passive checker, because this package validates outputs itself.

    Args:
        registered: registration of the id.
        kwargs: further arguments of `gymnasium.make`.
        mask_from_info: whether legal actions in infos become part of the observation: see `MaskFromInfo`.
        render_mode: Render mode, as in `gymnasium.make`; None takes that of `kwargs`.

    Raises:
        UserError: If the environment rejects these arguments, needs a package that is not installed, declares vectors as
            rewards, or has actions without masks.
    """
    given = kwargs if render_mode is None else {**kwargs, "render_mode": render_mode}
    try:
        env = gymnasium.make(registered, disable_env_checker=True, **given)
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(f"{registered.id}: {error}") from error
    except TypeError as error:
        if not kwargs or "unexpected keyword" not in str(error):
            raise
        raise UserError(f"{registered.id}: bad kwargs {kwargs}: {error}") from error
    rewards = getattr(env.unwrapped, "reward_space", None)  # as MO-Gymnasium declares them
    if getattr(rewards, "shape", ()) and not registered.additional_wrappers:
        env.close()
        raise UserError(
            f"{registered.id}: expected one number as reward, got {rewards}: pass a function that makes the environment in a "
            f"wrapper that combines them, such as mo_gymnasium.wrappers.LinearReward"
        )
    return MaskFromInfo(env) if mask_from_info else env
