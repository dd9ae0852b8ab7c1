"""Hide-and-seek, this project's implementations on MuJoCo and on a planar engine. Source: Baker et al. 2020 (arXiv:1909.07528)."""

import dataclasses
from functools import partial
from typing import Any, Literal

from envpool_bridge.envs.hide_and_seek.game import SIGNAL_NAMES, Base, Game, RandomWalls
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.suites.multi_agent_options import TeamOptions, split_kwargs, team_source
from envpool_bridge.envs.suites.optional_imports import validate_installed
from envpool_bridge.envs.suites.options import did_you_mean, options_of
from envpool_bridge.errors import UserError

GAMES: dict[str, type[Game]] = {"base": Base, "randomwalls": RandomWalls}
"""The variants by the id that EnvConfig(suite="hide_and_seek") takes."""

PHASE_FIELDS = (
    "hider_return",
    "seeker_return",
    "seen_fraction",
    "max_box_move_prep",
    "max_box_move",
    "num_box_lock_prep",
    "num_box_lock",
    "max_ramp_move_prep",
    "max_ramp_move",
    "num_ramp_lock_prep",
    "num_ramp_lock",
    "discard_episode",
    *SIGNAL_NAMES,
)
"""Info fields that show the phase of a run; docs/environments/hide_and_seek.md defines them."""


@dataclasses.dataclass(frozen=True)
class Engine:
    """Choice of the physics.

    Attributes:
        engine: "mujoco", the reference, or "planar", bodies with heights in a compiled kernel, for training.
    """

    engine: Literal["mujoco", "planar"] = "mujoco"


def hide_and_seek_source(env_id: str, kwargs: dict[str, Any], strict: bool) -> ParallelSource:
    """Returns the source of hiders, then seekers.

    Args:
        env_id: "base", the quadrant game, or "randomwalls", the published one.
        kwargs: fields of Engine, of the game's class, and of TeamOptions.
        strict: has no effect: observations have no bounds.

    Raises:
        UserError: no such variant, unknown or bad options, or the engine's package is missing.
    """
    if env_id not in GAMES:
        hint = did_you_mean(env_id, GAMES, 1) or f"expected one of {', '.join(GAMES)}"
        raise UserError(f"unknown game {env_id!r} of suite 'hide_and_seek': {hint}")
    shared, own = split_kwargs(kwargs)
    chosen = {name: own.pop(name) for name in ("engine",) if name in own}
    is_planar = options_of(Engine, "hide_and_seek", env_id, chosen).engine == "planar"
    validate_installed(*(("numba", "hide_and_seek") if is_planar else ("mujoco", "mujoco")))
    options = options_of(TeamOptions, "hide_and_seek", env_id, shared)
    game = options_of(GAMES[env_id], "hide_and_seek", env_id, own)
    make_env = partial(make_planar if is_planar else make_hide_and_seek, game)
    source = team_source(make_env, env_id, options, strict)
    if not is_planar:
        return source
    from envpool_bridge.envs.hide_and_seek.planar.rows import PlanarSource

    return PlanarSource(**{field.name: getattr(source, field.name) for field in dataclasses.fields(source)})


def make_hide_and_seek(game: Game, render_mode: str | None = None) -> Any:
    """Makes one environment, a `HideAndSeek`; imports MuJoCo in the process that steps it."""
    from envpool_bridge.envs.hide_and_seek.env import HideAndSeek

    return HideAndSeek(game, render_mode)


def make_planar(game: Game, render_mode: str | None = None) -> Any:
    """Makes one environment, a `PlanarHideAndSeek`; imports numba in the process that steps it."""
    from envpool_bridge.envs.hide_and_seek.planar.env import PlanarHideAndSeek

    return PlanarHideAndSeek(game, render_mode)
