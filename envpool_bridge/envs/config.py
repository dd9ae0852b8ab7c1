"""EnvConfig: an environment as data, so that a configuration, a command line and a checkpoint can all name it."""

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import gymnasium

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.native_ale import ale_vector_source
from envpool_bridge.envs.native_envpool import native_envpool_source
from envpool_bridge.envs.probes.single_agent import PROBES
from envpool_bridge.envs.probes.sleep import Sleep
from envpool_bridge.envs.probes.team import TEAM_PROBES, team_probe_source
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.envs.suites.atari import atari_source
from envpool_bridge.envs.suites.gymnasium import gymnasium_source, gymnasium_vector_source
from envpool_bridge.envs.suites.hanabi import hanabi_source
from envpool_bridge.envs.suites.hide_and_seek import hide_and_seek_source
from envpool_bridge.envs.suites.minigrid import minigrid_source
from envpool_bridge.envs.suites.overcooked import overcooked_source
from envpool_bridge.envs.suites.pettingzoo import mpe_source, pettingzoo_source
from envpool_bridge.envs.suites.vizdoom import vizdoom_source
from envpool_bridge.errors import UserError

Suite = Literal[
    "gymnasium",
    "gymnasium_vector",
    "envpool",
    "atari_vector",
    "atari",
    "minigrid",
    "vizdoom",
    "pettingzoo",
    "mpe",
    "hanabi",
    "overcooked",
    "hide_and_seek",
    "smax",
    "probe",
    "jax",
    "gymnax",
    "brax",
    "jumanji",
]
JAX_SUITES = frozenset({"jax", "gymnax", "brax", "jumanji"})  # whose sources jaxsrl makes: nothing here may import jax

_SOURCES: dict[str, Callable[[str, dict[str, Any], bool], EnvSource]] = {
    "gymnasium_vector": gymnasium_vector_source,
    "envpool": native_envpool_source,
    "atari_vector": ale_vector_source,
    "atari": atari_source,
    "minigrid": minigrid_source,
    "vizdoom": vizdoom_source,
    "pettingzoo": pettingzoo_source,
    "mpe": mpe_source,
    "hanabi": hanabi_source,
    "overcooked": overcooked_source,
    "hide_and_seek": hide_and_seek_source,
}


@dataclasses.dataclass(frozen=True)
class EnvConfig:
    """Which environment.

    Attributes:
        id: a `gymnasium.make` id, the name of a probe, or what the JAX package calls it.
        suite: "gymnasium" (any id, MuJoCo included), "gymnasium_vector" (Gymnasium's own vectorised version of the id),
            "envpool" (tasks of the EnvPool package), "atari_vector" ("atari" on ALE's own threads),
            "atari" (ALE/* with the field's preprocessing), "minigrid" (MiniGrid-*, BabyAI-*), "vizdoom" (Vizdoom*), "probe"
            (tasks with known values, some of teams, and Sleep), "jax" (our own: CartPole-v1), "gymnax", "brax", "jumanji" (those
            packages' ids); of several agents: "pettingzoo" (paths of modules), "mpe" (simple_*), "hanabi" (Hanabi-*), "overcooked"
            (layouts), "hide_and_seek" (base, randomwalls), "smax" (scenarios).
        kwargs: JSON object of further arguments: the suite's options (docs/environments/index.md), or those of `gymnasium.make`,
            the probe or the JAX environment.
        check_range: whether observations must lie within the declared bounds.
        mask_from_info: whether `info["action_mask"]`, which says what actions are legal, becomes part of the observation, where
            agents look for it; of suite "gymnasium".
        frame_stack: how many of the newest values of every Box agents see at once, each stored once; of suites "gymnasium" and
            "probe" ("atari" has an option of that name).
        info_fields: numbers in the environment's infos to record and average over episodes' ends.
        overlap_rows: step a worker's rows side by side in threads: for environments that wait rather than compute. Not needed
            by those that offer a step's two halves (docs/how_to/custom_environment.md), which wait side by side without threads.
    """

    id: str = "CartPole-v1"
    suite: Suite = "gymnasium"
    kwargs: str = "{}"
    check_range: bool = True
    mask_from_info: bool = False
    frame_stack: int = 1
    info_fields: tuple[str, ...] = ()
    overlap_rows: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "info_fields", tuple(self.info_fields))
        if self.frame_stack < 1:
            raise UserError(f"frame_stack must be at least 1: got {self.frame_stack}")
        if self.overlap_rows and self.suite in JAX_SUITES:
            raise UserError(f"overlap_rows is not for suite {self.suite!r}, whose environments are stepped all at once")

    def source(self) -> EnvSource:
        """The source of its rows; nothing is made yet except what tells whether the id exists.

        Raises:
            UserError: unknown id, bad kwargs, a package that is not installed, or a setting that the suite does not have.
        """
        source: Any = self._source()
        wanted: dict[str, Any] = {}
        if self.info_fields:
            wanted["info_fields"] = self.info_fields
        if self.frame_stack > 1:
            if self.suite not in ("gymnasium", "probe"):
                raise UserError(f"frame_stack is for suites 'gymnasium' and 'probe', got {self.suite!r}: use 1")
            wanted["frame_stack"] = self.frame_stack
        if self.overlap_rows:
            wanted["overlap_rows"] = True
        for name in wanted:
            if not hasattr(source, name):
                raise UserError(f"{name} is not for suite {self.suite!r}, whose environments are stepped all at once")
        return dataclasses.replace(source, **wanted) if wanted else source

    def _source(self) -> EnvSource:
        arguments = self.arguments()
        if self.mask_from_info and self.suite != "gymnasium":
            raise UserError(
                f"mask_from_info is for suite 'gymnasium', got {self.suite!r}: set it false, and give masks in the observation"
            )
        if self.suite in _SOURCES:
            return _SOURCES[self.suite](self.id, arguments, self.check_range)
        if self.suite == "gymnasium":
            return gymnasium_source(self.id, arguments, self.check_range, self.mask_from_info)
        if self.suite == "probe" and self.id in TEAM_PROBES:
            return team_probe_source(self.id, arguments, self.check_range)
        if self.suite == "probe":
            return GymnasiumSource(_probe(self.id, arguments), self.id, check_range=self.check_range)
        raise UserError(f"environments of suite {self.suite!r} are made by jaxsrl.envs.registry.make_env(config)")

    def arguments(self) -> dict[str, Any]:
        """`kwargs` parsed. Raises UserError if it is not a JSON object."""
        try:
            arguments = json.loads(self.kwargs)
        except json.JSONDecodeError as error:
            raise UserError(f"env kwargs must be a JSON object, got {self.kwargs!r}: {error}") from error
        if not isinstance(arguments, dict):
            raise UserError(f"env kwargs must be a JSON object, got {self.kwargs!r}")
        return arguments


def _probe(env_id: str, arguments: dict[str, Any]) -> Callable[[], gymnasium.Env]:
    known: dict[str, Callable[..., gymnasium.Env]] = {**PROBES, "Sleep": Sleep}
    if env_id not in known:
        raise UserError(f"unknown probe environment {env_id!r}: expected one of {', '.join([*known, *TEAM_PROBES])}")
    make = partial(known[env_id], **arguments)
    try:
        make()
    except TypeError as error:
        raise UserError(f"{env_id} of suite 'probe': bad kwargs {arguments}: {error}") from error
    return make
