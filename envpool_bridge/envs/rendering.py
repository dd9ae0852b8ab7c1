"""Sources of environments that render every frame of every episode as it is played."""

import dataclasses
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import gymnasium
import numpy as np

from envpool_bridge.envs.io.validation import describe
from envpool_bridge.envs.one_by_one import OneByOneSource
from envpool_bridge.envs.parallel_env import ParallelEnv
from envpool_bridge.envs.protocol import EnvRows, EnvSource
from envpool_bridge.errors import BadEnvOutputError, UserError
from envpool_bridge.spec.specs import EnvSpec

_FRAMES_PER_SECOND = 30.0  # default for environments without render_fps
_MODE = "rgb_array"
_EXPECTED = (
    "cannot be rendered: expected environments made one by one by a make_env that takes render_mode, which those of suites "
    "gymnasium, atari, minigrid, vizdoom, crafter, mpe and pettingzoo are"
)


class FrameConsumer(Protocol):
    """Consumer of frames."""

    def begin(self, frame: np.ndarray) -> None:
        """Receives the first frame of an episode, [H, W, 3] uint8. If no frame follows, the episode was not played."""
        ...

    def show(self, frame: np.ndarray) -> None:
        """Receives the frame after a step, [H, W, 3] uint8."""
        ...


@dataclasses.dataclass(frozen=True)
class RenderingSource:
    """Rows of environments whose frames go to a screen.

    Attributes:
        source: Source whose `make_env` takes the keyword `render_mode`.
        screen: receives the frames.
    """

    source: OneByOneSource
    screen: FrameConsumer

    def spec(self) -> EnvSpec:
        return self.source.spec()

    def make_rows(self, row_ids: Sequence[int], run_seed: int | None, keep_infos: bool) -> EnvRows:
        """Makes the rows of one environment: a screen shows only one."""
        return self.source.wrapped(RenderedEnv, self.screen).make_rows(row_ids, run_seed, keep_infos)


def rendering(source: EnvSource) -> tuple[OneByOneSource, float]:
    """Returns a source of the same environments in render mode, and a natural number of env steps per second.

    It makes two environments and renders a frame with the second, so that errors are raised here.

    Raises:
        UserError: If the source, the environment or this machine cannot render.
    """
    name = getattr(source, "env_id", "") or type(source).__name__
    if not isinstance(source, OneByOneSource):
        raise UserError(f"{name} {_EXPECTED}, got a {type(source).__name__}")
    if not _takes_render_mode(source.make_env):
        raise UserError(f"{name} {_EXPECTED}, got a make_env that does not")
    make_env = partial(source.make_env, render_mode=_MODE)  # pyright: ignore[reportCallIssue]
    try:
        _require_mode(source.make_env, name)
        per_second = _frames_per_second(make_env, name) / getattr(source, "action_repeat", 1)
    except (UserError, BadEnvOutputError) as error:
        raise UserError(str(error)) from error
    except Exception as error:  # any error of a graphics library
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{name} cannot be rendered on this machine: {what[:300]}{_advice()}") from error
    return dataclasses.replace(source, make_env=make_env), per_second


def _takes_render_mode(make_env: Callable[..., Any]) -> bool:
    try:
        inspect.signature(make_env).bind(render_mode=_MODE)
    except (TypeError, ValueError):
        return False
    return True


def _metadata(env: Any) -> dict[str, Any]:
    return getattr(env, "metadata", None) or {}


def _require_mode(make_env: Callable[[], Any], name: str) -> None:
    env = make_env()
    modes = _metadata(env).get("render_modes") or ()
    env.close()
    if _MODE not in modes:
        raise UserError(f"{name} cannot be rendered: expected {_MODE!r} among its render_modes, got {sorted(modes)}")
    mujoco, backend = sys.modules.get("gymnasium.envs.mujoco.mujoco_env"), os.environ.get("MUJOCO_GL")
    if backend is not None and mujoco is not None and isinstance(getattr(env, "unwrapped", env), mujoco.MujocoEnv):
        # Gymnasium's viewer prints its own traceback after a failure.
        importlib.import_module(f"mujoco.{backend}").GLContext(16, 16).free()


def _frames_per_second(make_env: Callable[[], Any], name: str) -> float:
    """Returns the frame rate that the environment declares, after rendering a frame."""
    try:
        env = make_env()
    except TypeError as error:  # a wrapper and the environments of stages pass render_mode on
        raise UserError(f"{name} {_EXPECTED}, got a make_env with one inside that does not: {error}") from error
    try:
        env.reset(seed=0)
        _frame(env, name)
        return float(_metadata(env).get("render_fps") or _FRAMES_PER_SECOND)
    finally:
        env.close()


def _advice() -> str:
    backend = os.environ.get("MUJOCO_GL")
    # An import of mujoco that failed for lack of the library leaves some of its modules, without the package itself.
    if backend is None or not any(name.partition(".")[0] == "mujoco" for name in sys.modules):
        return ""
    return (
        f". MuJoCo renders with MUJOCO_GL={backend}: install its library (Debian: libegl1 and libopengl0 for egl, libosmesa6 "
        f"for osmesa), or set MUJOCO_GL to another of egl, osmesa and glfw"
    )


def _frame(env: Any, name: str) -> np.ndarray:
    frame = env.render()
    if isinstance(frame, np.ndarray) and frame.ndim == 3 and frame.shape[2] == 3 and frame.dtype == np.uint8:
        return frame
    raise BadEnvOutputError(f"{name}: expected render() to return [height, width, 3] uint8, got {describe(frame)}")


class RenderedEnv:
    """Wrapper of an environment, Gymnasium's or PettingZoo's parallel, that sends a frame at every reset and step.

    Args:
        env: made with render_mode="rgb_array", owned by the wrapper.
        screen: receives the frames.
    """

    def __init__(self, env: gymnasium.Env | ParallelEnv, screen: FrameConsumer) -> None:
        self._env: Any = env
        self._screen = screen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        result = self._env.reset(*args, **kwargs)
        self._screen.begin(self._drawn())
        return result

    def step(self, action: Any) -> Any:
        result = self._env.step(action)
        self._screen.show(self._drawn())
        return result

    def _drawn(self) -> np.ndarray:
        return _frame(self._env, type(self._env).__name__)
