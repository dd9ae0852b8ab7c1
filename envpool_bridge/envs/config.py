"""EnvConfig: an environment as data, so that a configuration, a command line and a checkpoint can all name it."""

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import gymnasium

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.last_step import LastStep, with_last_step
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
from envpool_bridge.envs.suites.registry import suite_of_id
from envpool_bridge.envs.suites.vizdoom import vizdoom_source
from envpool_bridge.errors import UserError

Suite = Literal[
    "auto",
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
JAX_SUITES = frozenset({"jax", "gymnax", "brax", "jumanji"})  # made by jaxsrl: this package must not import jax

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
    """Choice of an environment.

    Attributes:
        id: a `gymnasium.make` id, the name of a probe, or the id of the JAX package.
        suite: kind of environment. "auto" takes "atari", "minigrid" or "vizdoom" by the id's prefix, otherwise "gymnasium".
            "gymnasium" (any id, including MuJoCo), "gymnasium_vector" (Gymnasium's own vectorized
            version of the id), "envpool" (tasks of the EnvPool package). "atari" (ALE/* with standard preprocessing),
            "atari_vector" ("atari" on ALE's own threads), "minigrid" (MiniGrid-*, BabyAI-*), "vizdoom" (Vizdoom*). "probe"
            (tasks with known values, some for teams, and Sleep). In JAX: "jax" (own tasks: CartPole-v1), "gymnax", "brax",
            "jumanji" (ids of these packages). With several agents: "pettingzoo" (paths of modules), "mpe" (simple_*),
            "hanabi" (Hanabi-*), "overcooked" (layouts), "hide_and_seek" (base, randomwalls), "smax" (scenarios).
        kwargs: JSON object of further arguments: the suite's options (docs/environments/index.md), or those of
            `gymnasium.make`, the probe or the JAX environment. `--env.kwargs.NAME VALUE` sets one of them.
        check_range: whether observations must lie within the declared bounds.
        mask_from_info: moves `info["action_mask"]`, the legal actions, into the observation, where agents read it; only
            for suite "gymnasium".
        frame_stack: number of newest values of every Box that agents see at once, each stored once; only for suites
            "gymnasium" and "probe" ("atari" has an option of that name).
        last_action: adds the item "last_action" to observations, for recurrent agents: the action before, zeros at first.
            Not for suites whose environments are stepped together ("envpool", "atari_vector", "gymnasium_vector").
        last_reward: likewise "last_reward", the agent's own reward before.
        info_fields: numbers in the environment's infos to record and to average over episodes at their end.
        overlap_rows: steps a worker's rows concurrently in threads: for environments that wait rather than compute.
            Environments with `step_async` and `step_wait` (docs/how_to/custom_environment.md) overlap without threads
            and do not need it.
    """

    id: str = "CartPole-v1"
    suite: Suite = "auto"
    kwargs: str = "{}"
    check_range: bool = True
    mask_from_info: bool = False
    frame_stack: int = 1
    last_action: bool = False
    last_reward: bool = False
    info_fields: tuple[str, ...] = ()
    overlap_rows: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "info_fields", tuple(self.info_fields))
        if self.frame_stack < 1:
            raise UserError(f"frame_stack must be at least 1: got {self.frame_stack}")
        if self.overlap_rows and self.suite in JAX_SUITES:
            raise UserError(f"overlap_rows is not for suite {self.suite!r}, whose environments are stepped together")

    def with_suite(self) -> "EnvConfig":
        """Returns the configuration with the suite that "auto" stands for."""
        return self if self.suite != "auto" else dataclasses.replace(self, suite=suite_of_id(self.id))

    def source(self) -> EnvSource:
        """Returns the source of its rows; makes only what the validation of the id requires.

        Raises:
            UserError: unknown id, bad kwargs, a package that is not installed, or a setting that the suite does not
                have.
        """
        if self.suite == "auto":
            return self.with_suite().source()
        source: Any = self._source()
        if self.last_action or self.last_reward:
            source = with_last_step(source, self.suite, LastStep(self.last_action, self.last_reward))
        settings: dict[str, Any] = {}
        if self.info_fields:
            settings["info_fields"] = self.info_fields
        if self.frame_stack > 1:
            if self.suite not in ("gymnasium", "probe"):
                raise UserError(f"frame_stack is for suites 'gymnasium' and 'probe', got {self.suite!r}: use 1")
            settings["frame_stack"] = self.frame_stack
        if self.overlap_rows:
            settings["overlap_rows"] = True
        for name in settings:
            if not hasattr(source, name):
                raise UserError(f"{name} is not for suite {self.suite!r}, whose environments are stepped together")
        return dataclasses.replace(source, **settings) if settings else source

    def _source(self) -> EnvSource:
        arguments = self.arguments()
        if self.mask_from_info and self.suite != "gymnasium":
            raise UserError(
                f"mask_from_info is for suite 'gymnasium', got {self.suite!r}: set it false, and put masks in the observation"
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
        """Parses `kwargs`. Raises UserError if it is not a JSON object."""
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
