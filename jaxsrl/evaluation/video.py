"""Videos: whole episodes of fixed parameters, drawn by the environment."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from agents.api import AnyAgent, Mode, Params
from envpool_bridge.envs.function_source import AnyEnv, as_source
from envpool_bridge.envs.rendering import RenderingSource, rendering
from envpool_bridge.errors import UserError
from jaxsrl.evaluation.evaluate import EvaluationReport, evaluate, for_evaluation
from jaxsrl.evaluation.video_file import validate_video_path, video_file

_PAUSE_SECONDS = 0.5


class Video:
    """Video of environments. The constructor raises before anything is played if recording is impossible.

    Whole games are played where training's episodes are changed for learning.

    Args:
        make_env: see `evaluate`.
        path: file *.mp4, which is replaced if it exists.
        episodes: number of episodes, one after another.

    Raises:
        UserError: If a path or number is bad, a package is missing, or the environment or this machine cannot draw.
    """

    def __init__(self, make_env: AnyEnv, path: Path, episodes: int = 1) -> None:
        if episodes < 1:
            raise UserError(f"video_episodes must be at least 1: got {episodes}")
        validate_video_path(path)
        _draw_without_display()
        self._source, self._frames_per_second = rendering(for_evaluation(as_source(make_env)))
        self._path, self._episodes = path, episodes

    def record(self, agent: AnyAgent, params: Params, *, seed: int = 0, mode: Mode = Mode.GREEDY) -> EvaluationReport:
        """Plays the episodes of `evaluate(..., seed=seed, mode=mode, max_rows=1)`, and writes them.

        The file appears when it is complete. Between two episodes the last frame stays for half a second.

        Returns:
            The results of the shown episodes.

        Raises:
            BadEnvOutputError: If a frame has another size than the previous one.
        """
        with video_file(self._path, self._frames_per_second) as write:
            film = _Film(write, self._frames_per_second)
            report = evaluate(
                agent,
                params,
                RenderingSource(self._source, film),
                episodes=self._episodes,
                seed=seed,
                mode=mode,
                max_rows=1,
            )
        return report


def _draw_without_display() -> None:
    """Makes MuJoCo and pygame draw into memory on machines without a screen, unless their variables are set."""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # the prompt would precede the command's JSON


class _Film:
    """Consumer of frames that writes episodes one after another."""

    def __init__(self, write: Callable[[np.ndarray], None], frames_per_second: float) -> None:
        self._write, self._frames_per_second = write, frames_per_second
        self._first: np.ndarray | None = None  # of an episode without a step yet
        self._last: np.ndarray | None = None

    def begin(self, frame: np.ndarray) -> None:
        self._first = frame.copy()

    def show(self, frame: np.ndarray) -> None:
        if self._first is not None:
            if self._last is not None:
                for _ in range(max(1, round(self._frames_per_second * _PAUSE_SECONDS))):
                    self._write(self._last)
            self._write(self._first)
            self._first = None
        self._write(frame)
        self._last = frame.copy()
