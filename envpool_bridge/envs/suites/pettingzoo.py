"""PettingZoo environments by their module path: MPE, Butterfly, SISL, turn-based games, and custom ones."""

import difflib
import importlib
import importlib.util
import pkgutil
import warnings
from functools import partial
from typing import Any

from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.parallel_env import ParallelEnv
from envpool_bridge.envs.suites.masks_from_infos import with_masks_of_infos
from envpool_bridge.envs.suites.multi_agent_options import TeamOptions, split_kwargs, team_source
from envpool_bridge.envs.suites.optional_imports import validate_installed
from envpool_bridge.envs.suites.options import options_of
from envpool_bridge.envs.suites.turn_based import RewardsOfLast, TurnBased
from envpool_bridge.errors import UserError

_MPE = "mpe2"


def mpe_source(env_id: str, kwargs: dict[str, Any], strict: bool) -> ParallelSource:
    """Returns the source of a multi-particle environment ("simple_spread_v3"): `pettingzoo_source("mpe2/" + env_id, ...)`."""
    validate_installed(_MPE, "pettingzoo")
    return pettingzoo_source(f"{_MPE}/{env_id}", kwargs, strict)


def pettingzoo_source(env_id: str, kwargs: dict[str, Any], strict: bool) -> ParallelSource:
    """Returns the source of an environment's agents.

    Args:
        env_id: path of a module with `parallel_env(**kwargs)`, or `env(**kwargs)` of an AEC environment:
            "mpe2/simple_spread_v3", "pettingzoo/classic/connect_four_v3", "my_package/my_env".
        kwargs: fields of TeamOptions; all others are the environment's own.
        strict: whether output must be as declared; otherwise it is repaired where that is possible, and counted.

    Raises:
        UserError: If there is no such module, it has no environment, or an option is bad.
    """
    validate_installed("pettingzoo", "pettingzoo")
    _module(env_id)  # raises here instead of in a worker
    own, others = split_kwargs(kwargs)
    options = options_of(TeamOptions, "pettingzoo", env_id, own)
    return team_source(partial(make_pettingzoo, env_id, others), env_id, options, strict)


def make_pettingzoo(env_id: str, kwargs: dict[str, Any], render_mode: str | None = None) -> ParallelEnv:
    """Makes one environment.

    An AEC environment whose agents act in a cycle becomes a parallel one by PettingZoo's own conversion, a turn-based
    one by `TurnBased`. Masks in infos become items of the observations.

    Args:
        env_id: Environment id, as in `pettingzoo_source`.
        kwargs: the environment's own.
        render_mode: Render mode, as in PettingZoo's environments; None takes that of `kwargs`.

    Raises:
        UserError: If there is no such module, it has no environment, rejects these arguments, or needs a package.
    """
    module = _module(env_id)
    make = getattr(module, "parallel_env", None) or module.env
    given = kwargs if render_mode is None else {**kwargs, "render_mode": render_mode}
    try:
        env = make(**given)
    except ImportError as error:
        raise UserError(f"environment {env_id!r} of suite 'pettingzoo' needs a package: {error}") from error
    except TypeError as error:
        if not kwargs or "unexpected keyword" not in str(error):
            raise
        raise UserError(f"{env_id}: bad kwargs {kwargs}: {error}") from error
    return as_parallel(env, env_id)


def as_parallel(env: Any, env_id: str) -> ParallelEnv:
    """Converts a PettingZoo environment, parallel or AEC, to a parallel one whose masks are items of the observations."""
    if not hasattr(env, "agent_iter"):
        return with_masks_of_infos(env)
    if env.metadata.get("is_parallelizable", False):
        from pettingzoo.utils.conversions import aec_to_parallel

        return with_masks_of_infos(aec_to_parallel(RewardsOfLast(env)))  # pyright: ignore[reportArgumentType]
    return TurnBased(env, env_id)


def _module(env_id: str) -> Any:
    name = env_id.replace("/", ".")
    package = name.rpartition(".")[0]
    try:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"unknown environment {env_id!r} of suite 'pettingzoo': {_advice(package, name)}")
        with warnings.catch_warnings():
            # PettingZoo 1.27 recommends its registry, which lacks the modules of other packages.
            warnings.simplefilter("ignore", DeprecationWarning)
            module = importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"environment {env_id!r} of suite 'pettingzoo' cannot be imported: {error}") from error
    if not (hasattr(module, "parallel_env") or hasattr(module, "env")):
        raise UserError(
            f"{env_id!r} of suite 'pettingzoo' has no environment: expected the path of a module with parallel_env or env; "
            f"{_advice(name, name)}"
        )
    return module


def _advice(package: str, name: str) -> str:
    """Returns a hint with similar modules of a package."""
    if not package:
        return "expected the path of a module, such as mpe2/simple_spread_v3"
    paths = getattr(importlib.import_module(package), "__path__", [])
    known = [f"{package}.{module.name}".replace(".", "/") for module in pkgutil.iter_modules(paths)]
    close = difflib.get_close_matches(name.replace(".", "/"), known, n=3) or sorted(known)
    return f"did you mean {' or '.join(close)}?" if close else f"{package} has no modules"
