"""EnvConfig: an environment as data, so that a configuration, a command line and a checkpoint can all name it."""

import dataclasses
import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import gymnasium

from envpool_bridge.envs.action_repeat import validate_action_repeat, with_action_repeat
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.json_arguments import is_json, json_text
from envpool_bridge.envs.last_step import LastStep, with_last_step
from envpool_bridge.envs.mixed_rows import mixed_source
from envpool_bridge.envs.native_ale import ale_vector_source
from envpool_bridge.envs.native_envpool import native_envpool_source
from envpool_bridge.envs.probes.single_agent import PROBES
from envpool_bridge.envs.probes.sleep import Sleep
from envpool_bridge.envs.probes.team import TEAM_PROBES, team_probe_source
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.envs.stages import staged_source
from envpool_bridge.envs.suites.atari import atari_source
from envpool_bridge.envs.suites.crafter import crafter_source
from envpool_bridge.envs.suites.gymnasium import gymnasium_source, gymnasium_vector_source
from envpool_bridge.envs.suites.hanabi import hanabi_source
from envpool_bridge.envs.suites.hide_and_seek import hide_and_seek_source
from envpool_bridge.envs.suites.minigrid import minigrid_source
from envpool_bridge.envs.suites.overcooked import overcooked_source
from envpool_bridge.envs.suites.pettingzoo import mpe_source, pettingzoo_source
from envpool_bridge.envs.suites.registry import suite_of_id, with_newest_version
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
    "crafter",
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
    "pgx",
]
JAX_SUITES = frozenset({"jax", "gymnax", "brax", "jumanji", "pgx"})  # made by jaxsrl: this package must not import jax

_SETTINGS = ("info_fields", "frame_stack", "overlap_rows", "stagger", "stage", "levels")
"""Fields that a source has too, if its environments are stepped one by one."""
_SOURCES: dict[str, Callable[[str, dict[str, Any], bool], EnvSource]] = {
    "gymnasium_vector": gymnasium_vector_source,
    "envpool": native_envpool_source,
    "atari_vector": ale_vector_source,
    "atari": atari_source,
    "minigrid": minigrid_source,
    "vizdoom": vizdoom_source,
    "crafter": crafter_source,
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
        id: a `gymnasium.make` id, the name of a probe, or the id of the JAX package. One without a version, such as "CartPole",
            becomes that of the newest version. Several ids with equal spaces, separated
            by commas, are tasks of one run: each has a share of the environments, and metrics of its own.
        suite: kind of environment. "auto" takes "atari", "minigrid", "vizdoom" or "crafter" by the id's prefix, else "gymnasium".
            "gymnasium" (any id, including MuJoCo), "gymnasium_vector" (Gymnasium's own vectorized
            version of the id), "envpool" (tasks of the EnvPool package). "atari" (ALE/* with standard preprocessing),
            "atari_vector" ("atari" on ALE's own threads), "minigrid" (MiniGrid-*, BabyAI-*), "vizdoom" (Vizdoom*), "crafter"
            (Crafter*). "probe" (tasks with known values, some for teams, and Sleep). In JAX: "jax" (own tasks: CartPole-v1,
            simple_spread_v3), "gymnax", "brax", "jumanji", "pgx" (ids of these packages). With several agents:
            "pettingzoo" (paths of modules), "mpe" (simple_*), "hanabi" (Hanabi-*), "overcooked" (layouts), "hide_and_seek"
            (base, randomwalls), "smax" (scenarios).
        kwargs: dict of further arguments: the suite's options (docs/environments/index.md), or those of `gymnasium.make`, the
            probe or the JAX environment. Stored as JSON text. `--env.kwargs NAME=VALUE ...` sets some of them, and
            `--env.kwargs JSON` all.
        strict: whether output must be as declared; otherwise it is repaired where that is possible, and counted.
        mask_from_info: moves `info["action_mask"]`, the legal actions, into the observation, where agents read it; only
            for suite "gymnasium".
        frame_stack: number of newest values of every Box that agents see at once, each stored once; only for suites
            "gymnasium" and "probe" ("atari" has an option of that name).
        action_repeat: steps for which each action is repeated; rewards are summed, and an episode's end ends it. Env steps
            count actions, frames count the environment's own steps. "atari" and "vizdoom" have `frame_skip` in `kwargs`
            instead. Not for environments with action masks.
        last_action: adds the item "last_action" to observations, for recurrent agents: the action before, zeros at first.
            Not for suites whose environments are stepped together ("envpool", "atari_vector", "gymnasium_vector").
        last_reward: Whether "last_reward" is observed, the agent's own reward before.
        info_fields: numbers in the environment's infos to record and to average over episodes at their end.
        overlap_rows: steps a worker's rows concurrently in threads: for environments that wait rather than compute.
            Environments with `step_async` and `step_wait` (docs/how_to/custom_environment.md) overlap without threads
            and do not need it.
        row_kwargs: further arguments of some of the rows: a dict of names of tasks and their arguments, or a list of
            arguments; in the forms of `kwargs`. With several ids, one for each id. They take precedence over `kwargs`.
        row_shares: share of the environments of each task; empty for equal shares.
        add_task: adds the item "task" to observations: 1 at the row's own task, 0 at the others.
        stagger: longest first episode, in env steps. The first episodes of the rows are truncated after different numbers of
            steps, so that long episodes of equal length do not end together; 0 leaves them whole.
        stage: integer that environments receive with every reset, `reset(options={"stage": n})`. A callback may change it
            while a run trains. None for none; 0 where `stages` names some.
        stages: environments of stages 0, 1, ..., each an id, or arguments that take precedence over `kwargs`, in its forms.
            Their observations and actions have the same form. The last one is the task itself, and replaces `id`.
        levels: number of levels that prioritized level replay chooses episodes from. A level is the seed of its episodes, or
            their stage where `stage` is set. 0 for none: every episode has a seed of its own.
    """

    id: str = "CartPole-v1"
    suite: Suite = "auto"
    kwargs: Any = "{}"
    strict: bool = True
    mask_from_info: bool = False
    frame_stack: int = 1
    action_repeat: int = 1
    last_action: bool = False
    last_reward: bool = False
    info_fields: tuple[str, ...] = ()
    overlap_rows: bool = False
    row_kwargs: Any = "[]"
    row_shares: tuple[float, ...] = ()
    add_task: bool = False
    stagger: int = 0
    stage: int | None = None
    stages: tuple[Any, ...] = ()
    levels: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "info_fields", tuple(self.info_fields))
        object.__setattr__(self, "kwargs", json_text(self.kwargs, "env.kwargs"))
        object.__setattr__(self, "row_kwargs", json_text(self.row_kwargs, "env.row_kwargs", may_be_list=True))
        if self.frame_stack < 1:
            raise UserError(f"frame_stack must be at least 1: got {self.frame_stack}")
        validate_action_repeat(self.suite, self.action_repeat)
        object.__setattr__(self, "row_shares", tuple(self.row_shares))
        stages = tuple(map(_stage_text, self.stages))
        if self.suite in ("auto", "gymnasium", "gymnasium_vector"):
            object.__setattr__(self, "id", re.sub(r"[^,\s]+", lambda name: with_newest_version(name[0]), self.id))
            stages = tuple(map(with_newest_version, stages))
        object.__setattr__(self, "stages", stages)
        if self.stages:
            object.__setattr__(self, "stage", self.stage or 0)
            object.__setattr__(self, "id", _stage_id(self.stages[-1]) or self.id)
        if self.levels < 0 or (self.stages and self.levels not in (0, len(self.stages))):
            expected = f"0 or {len(self.stages)}, the number of stages" if self.stages else "at least 0"
            raise UserError(f"levels: expected {expected}, got {self.levels}")
        if self.stagger < 0:
            raise UserError(f"stagger must be at least 0: got {self.stagger}")
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
        tasks = self.tasks()
        if tasks and self.levels:
            raise UserError(
                f"levels are for one task: expected levels 0 or one task, got {self.levels} and {len(tasks)}"
            )
        if tasks:
            sources = {name: config.source() for name, config in tasks.items()}
            return mixed_source(sources, self.row_shares, env_id=self.id, add_task=self.add_task)
        if self.row_shares or self.add_task:
            raise UserError("row_shares and add_task are for several tasks: name several ids, or set row_kwargs")
        if self.stages:
            staged = staged_source([config.source() for config in self.stage_configs()], self.id)
            return self._with_settings(dataclasses.replace(staged, stage=self.stage), "levels")
        source: Any = self._source()
        if self.action_repeat > 1:
            source = with_action_repeat(source, self.action_repeat)
        if self.last_action or self.last_reward:
            source = with_last_step(source, self.suite, LastStep(self.last_action, self.last_reward))
        if self.frame_stack > 1 and self.suite not in ("gymnasium", "probe"):
            raise UserError(f"frame_stack is for suites 'gymnasium' and 'probe', got {self.suite!r}: use 1")
        return self._with_settings(source, *_SETTINGS)

    def _with_settings(self, source: Any, *names: str) -> EnvSource:
        settings = {name: getattr(self, name) for name in names if getattr(self, name) != getattr(EnvConfig, name)}
        for name in settings:
            if not hasattr(source, name):
                expected = getattr(EnvConfig, name)
                raise UserError(
                    f"{name} is not for suite {self.suite!r}: expected {expected!r}, got {settings[name]!r}"
                )
        return dataclasses.replace(source, **settings) if settings else source

    def _source(self) -> EnvSource:
        arguments = self.arguments()
        if self.mask_from_info and self.suite != "gymnasium":
            raise UserError(
                f"mask_from_info is for suite 'gymnasium', got {self.suite!r}: set it false, and put masks in the observation"
            )
        if self.suite in _SOURCES:
            return _SOURCES[self.suite](self.id, arguments, self.strict)
        if self.suite == "gymnasium":
            return gymnasium_source(self.id, arguments, self.strict, self.mask_from_info)
        if self.suite == "probe" and self.id in TEAM_PROBES:
            return team_probe_source(self.id, arguments, self.strict)
        if self.suite == "probe":
            return GymnasiumSource(_probe(self.id, arguments), self.id, strict=self.strict)
        raise UserError(f"environments of suite {self.suite!r} are made by jaxsrl.envs.registry.make_env(config)")

    def tasks(self) -> dict[str, "EnvConfig"]:
        """Returns the configuration of each task by its name; {} if all rows are alike.

        Raises:
            UserError: `row_kwargs` holds something else than arguments, or does not fit the ids.
        """
        ids = [name.strip() for name in self.id.split(",")]
        each = json.loads(self.row_kwargs)
        if len(ids) == 1 and not each:
            return {}
        names = list(each) if isinstance(each, dict) else ids if len(ids) > 1 else [str(n) for n in range(len(each))]
        each = list(each.values()) if isinstance(each, dict) else each or [{}] * len(ids)
        ids = ids * len(each) if len(ids) == 1 else ids
        if len({len(ids), len(each), len(names), len(set(names))}) > 1:
            raise UserError(
                f"row_kwargs must have one entry for each id, and tasks need different names: got {len(ids)} ids, "
                f"{len(each)} entries, and the names {names}"
            )
        if not all(isinstance(one, dict) for one in each):
            raise UserError(f"row_kwargs must hold dicts, got {self.row_kwargs!r}")
        plain = dataclasses.replace(self, row_kwargs="[]", row_shares=(), add_task=False)
        shared = self.arguments()
        return {
            name: dataclasses.replace(plain, id=env_id, kwargs=json.dumps({**shared, **own}))
            for name, env_id, own in zip(names, ids, each, strict=True)
        }

    def stage_configs(self) -> list["EnvConfig"]:
        """Returns the configuration of each of `stages`."""
        plain, shared = dataclasses.replace(self, stages=(), stage=None, levels=0), self.arguments()
        configs: list[EnvConfig] = []
        for stage in self.stages:
            name = _stage_id(stage)
            own = {} if name else json.loads(stage)
            kwargs = json.dumps({**shared, **own})
            configs.append(dataclasses.replace(plain, id=name or self.id, kwargs=kwargs))
        return configs

    def arguments(self) -> dict[str, Any]:
        """Returns `kwargs` as a dict."""
        return json.loads(self.kwargs)


def _stage_text(stage: Any) -> str:
    """Returns an entry of `stages` as an id, or arguments as JSON text."""
    return (
        stage if isinstance(stage, str) and not is_json(stage) and "=" not in stage else json_text(stage, "env.stages")
    )


def _stage_id(stage: str) -> str:
    """Returns the id that an entry of `stages` is; "" for arguments."""
    return "" if is_json(stage) else stage


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
