"""EnvConfig: an environment as data, so that a configuration, a command line and a checkpoint can all name it."""

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import gymnasium

from envpool_bridge.adapters.ale_vector_rows import ale_vector_source
from envpool_bridge.adapters.envpool_rows import native_envpool_source
from envpool_bridge.adapters.gymnasium_rows import GymnasiumSource
from envpool_bridge.adapters.probe import PROBES
from envpool_bridge.adapters.rows import EnvSource
from envpool_bridge.adapters.sleep import Sleep
from envpool_bridge.adapters.suites.atari import atari_source
from envpool_bridge.adapters.suites.gymnasium_ids import gymnasium_source, gymnasium_vector_source
from envpool_bridge.adapters.suites.minigrid import minigrid_source
from envpool_bridge.adapters.suites.vizdoom import vizdoom_source
from envpool_bridge.errors import UserError

Suite = Literal[
    "gymnasium",
    "gymnasium_vector",
    "envpool",
    "atari_vector",
    "atari",
    "minigrid",
    "vizdoom",
    "probe",
    "jax",
    "gymnax",
    "brax",
    "jumanji",
]
JAX_SUITES = frozenset({"jax", "gymnax", "brax", "jumanji"})  # whose sources jaxsrl makes: nothing here may import jax


@dataclasses.dataclass(frozen=True)
class EnvConfig:
    """Which environment.

    Attributes:
        id: a `gymnasium.make` id, the name of a probe, or what the JAX package calls it.
        suite: "gymnasium" (any id, MuJoCo included), "gymnasium_vector" (Gymnasium's own vectorised version of the id),
            "envpool" (tasks of the EnvPool package), "atari_vector" ("atari" on ALE's own threads),
            "atari" (ALE/* with the field's preprocessing), "minigrid" (MiniGrid-*, BabyAI-*), "vizdoom" (Vizdoom*), "probe"
            (tasks with known values, and Sleep), "jax" (our own: CartPole-v1), "gymnax", "brax", "jumanji" (those packages'
            ids).
        kwargs: JSON object of further arguments: the suite's options (docs/environments.md), or those of `gymnasium.make`,
            the probe or the JAX environment.
        check_range: whether observations must lie within the declared bounds.
    """

    id: str = "CartPole-v1"
    suite: Suite = "gymnasium"
    kwargs: str = "{}"
    check_range: bool = True

    def source(self) -> EnvSource:
        """The source of its rows; nothing is made yet except what tells whether the id exists.

        Raises:
            UserError: unknown id, bad kwargs, or a package that is not installed.
        """
        arguments = self.arguments()
        match self.suite:
            case "gymnasium":
                return gymnasium_source(self.id, arguments, self.check_range)
            case "gymnasium_vector":
                return gymnasium_vector_source(self.id, arguments, self.check_range)
            case "envpool":
                return native_envpool_source(self.id, arguments, self.check_range)
            case "atari_vector":
                return ale_vector_source(self.id, arguments, self.check_range)
            case "atari":
                return atari_source(self.id, arguments, self.check_range)
            case "minigrid":
                return minigrid_source(self.id, arguments, self.check_range)
            case "vizdoom":
                return vizdoom_source(self.id, arguments, self.check_range)
            case "probe":
                return GymnasiumSource(_probe(self.id, arguments), self.id, check_range=self.check_range)
        raise UserError(f"environments of suite {self.suite!r} are made by jaxsrl.environments.source_of(config)")

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
        raise UserError(f"unknown probe environment {env_id!r}: expected one of {', '.join(known)}")
    make = partial(known[env_id], **arguments)
    try:
        make()
    except TypeError as error:
        raise UserError(f"{env_id} of suite 'probe': bad kwargs {arguments}: {error}") from error
    return make
