"""EnvConfig: an environment as data, so that a configuration, a command line and a checkpoint can all name it."""

import dataclasses
import difflib
import json
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import gymnasium

from envpool_bridge.adapters.gymnasium_rows import GymnasiumSource
from envpool_bridge.adapters.probe import PROBES
from envpool_bridge.adapters.rows import EnvSource
from envpool_bridge.adapters.sleep import Sleep
from envpool_bridge.adapters.vector_rows import VectorSource
from envpool_bridge.errors import UserError

Suite = Literal["gymnasium", "gymnasium_vector", "atari", "probe", "jax", "gymnax", "brax", "jumanji"]
JAX_SUITES = frozenset({"jax", "gymnax", "brax", "jumanji"})  # whose sources jaxsrl makes: nothing here may import jax


@dataclasses.dataclass(frozen=True)
class EnvConfig:
    """Which environment.

    Attributes:
        id: a `gymnasium.make` id, the name of a probe, or what the JAX package calls it.
        suite: "gymnasium" (any id, MuJoCo included), "gymnasium_vector" (Gymnasium's own vectorised version of the id),
            "atari" (ALE/* with the field's preprocessing), "probe" (tasks with known values, and Sleep), "jax" (our own:
            CartPole-v1), "gymnax", "brax", "jumanji" (those packages' ids).
        kwargs: JSON object of further arguments for `gymnasium.make`, the probe or the JAX environment.
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
        if self.suite in JAX_SUITES:
            raise UserError(f"environments of suite {self.suite!r} are made by jaxsrl.environments.source_of(config)")
        arguments = self.arguments()
        if self.suite == "probe":
            return GymnasiumSource(_probe(self.id, arguments), self.id, check_range=self.check_range)
        if self.suite == "atari":
            _require_package("ale_py", "atari")
            _require_package("cv2", "atari")
            _register_atari()
        _require_known(self.id)
        if self.suite == "atari":
            return GymnasiumSource(partial(make_atari, self.id, arguments), self.id, 4, self.check_range)
        if self.suite == "gymnasium_vector":
            return VectorSource(partial(make_vector, self.id, arguments), self.id, check_range=self.check_range)
        return GymnasiumSource(partial(make_gymnasium, self.id, arguments), self.id, check_range=self.check_range)

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


def make_gymnasium(env_id: str, kwargs: dict[str, Any]) -> gymnasium.Env:
    """`gymnasium.make` without its passive checker: what it would warn of, we refuse."""
    _register_for(env_id)
    return gymnasium.make(env_id, disable_env_checker=True, **kwargs)


def make_vector(env_id: str, kwargs: dict[str, Any], num_envs: int) -> gymnasium.vector.VectorEnv:
    """Gymnasium's vectorised version of the id, its own implementation where it has one."""
    _register_for(env_id)
    return gymnasium.make_vec(env_id, num_envs=num_envs, **kwargs)


def make_atari(env_id: str, kwargs: dict[str, Any]) -> gymnasium.Env:
    """An Atari game as the field plays it.

    Frame skip 4 with max over the last two frames, 84x84 grey, up to 30 no-ops at the start, 4 frames stacked [4, 84, 84],
    and no sticky actions. Source: Mnih et al. 2015; Machado et al. 2018, table 1 (the sticky-action variant:
    kwargs '{"repeat_action_probability": 0.25}').
    """
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    _register_atari()
    arguments = {"repeat_action_probability": 0.0, **kwargs}
    env = gymnasium.make(env_id, disable_env_checker=True, frameskip=1, **arguments)
    return FrameStackObservation(AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84), 4)


def _register_for(env_id: str) -> None:
    if env_id.startswith("ALE/"):
        _register_atari()


def _register_atari() -> None:
    import ale_py

    if "ALE/Pong-v5" not in gymnasium.registry:
        gymnasium.register_envs(ale_py)


def _require_package(module: str, extra: str) -> None:
    import importlib.util

    if importlib.util.find_spec(module) is None:
        raise UserError(f"{module} is not installed, which these environments need: pip install 'jaxsrl[{extra}]'")


def _require_known(env_id: str) -> None:
    if env_id.startswith("ALE/"):
        _require_package("ale_py", "atari")
        _register_atari()
    try:
        spec = gymnasium.spec(env_id)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        close = difflib.get_close_matches(env_id, list(gymnasium.registry), n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        first = str(error).splitlines()[0]
        raise UserError(f"unknown environment id {env_id!r}: {first}{hint}") from error
    if isinstance(spec.entry_point, str) and "mujoco" in spec.entry_point:
        _require_package("mujoco", "mujoco")
        _require_package("imageio", "mujoco")
