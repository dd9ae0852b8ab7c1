"""Videos: whole episodes of fixed parameters, drawn by the environment and written as H.264."""

import importlib.util
import os
import subprocess
from pathlib import Path

import numpy as np

from agents.api import AnyAgent, Mode, Params
from envpool_bridge.envs.function_source import AnyEnv, as_source
from envpool_bridge.envs.rendering import RenderingSource, rendering
from envpool_bridge.errors import BadEnvOutputError, UserError
from jaxsrl.evaluation.evaluate import EvaluationReport, evaluate

_PAUSE_SECONDS = 0.5
_ENCODER_SECONDS = 60.0  # that the end of a file may take


class Video:
    """A video of environments that is to be recorded; what stands against it is refused before anything is played."""

    def __init__(self, make_env: AnyEnv, path: Path, episodes: int = 1) -> None:
        """Of the environments of `make_env`, whole games where training's are changed for learning.

        Args:
            make_env: as `evaluate` takes it.
            path: of the file, *.mp4; one that is there is replaced.
            episodes: how many are shown, one after another.

        Raises:
            UserError: a bad path or number, a package is missing, or the environment or this machine cannot draw.
        """
        if episodes < 1:
            raise UserError(f"video_episodes must be at least 1: got {episodes}")
        if path.suffix != ".mp4" or not path.parent.is_dir() or path.is_dir():
            raise UserError(f"expected the video to be a file *.mp4 in a directory that is there, got {path}")
        if importlib.util.find_spec("imageio_ffmpeg") is None:
            raise UserError("imageio-ffmpeg is not installed, which writes videos: pip install 'jaxsrl[video]'")
        _draw_without_display()
        source = as_source(make_env)
        whole_games = getattr(source, "for_evaluation", None)
        self._source, self._frames_per_second = rendering(whole_games() if whole_games is not None else source)
        self._path, self._episodes = path, episodes

    def record(self, agent: AnyAgent, params: Params, *, seed: int = 0, mode: Mode = Mode.GREEDY) -> EvaluationReport:
        """Plays the episodes that `evaluate(..., seed=seed, mode=mode, max_rows=1)` plays, and writes them.

        The file appears once it is whole. Between two episodes the last frame stands still for half a second.

        Returns:
            The results of the episodes that are shown.

        Raises:
            BadEnvOutputError: a frame has another size than the one before.
        """
        partial_path = self._path.with_name(f".{self._path.stem}.{os.getpid()}.partial.mp4")
        film = _Film(partial_path, self._frames_per_second)
        try:
            try:
                report = evaluate(
                    agent,
                    params,
                    RenderingSource(self._source, film),
                    episodes=self._episodes,
                    seed=seed,
                    mode=mode,
                    max_rows=1,
                )
            finally:
                film.close()
            partial_path.replace(self._path)
        finally:
            partial_path.unlink(missing_ok=True)
        return report


def _draw_without_display() -> None:
    """Has MuJoCo and pygame draw into memory where there is no screen, unless somebody has said how."""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # which would precede the command's JSON


class _Film:
    """Keeps the protocol `Screen`: episodes one after another in a file."""

    def __init__(self, path: Path, frames_per_second: float) -> None:
        self._path, self._frames_per_second = path, frames_per_second
        self._encoder: _Encoder | None = None
        self._first: np.ndarray | None = None  # of an episode that nobody has acted in yet
        self._last: np.ndarray | None = None
        self._shape: tuple[int, ...] = ()

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

    def close(self) -> None:
        if self._encoder is not None:
            self._encoder.close()
            self._encoder = None

    def _write(self, frame: np.ndarray) -> None:
        height, width = frame.shape[:2]
        # Every player makes something of yuv420p, whose colours are of two by two pixels.
        even = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self._encoder is None:
            self._shape = frame.shape
            self._encoder = _Encoder(self._path, even.shape, self._frames_per_second)
        if frame.shape != self._shape:
            raise BadEnvOutputError(
                f"expected frames of one size in a video: got one of {frame.shape} after {self._shape}"
            )
        self._encoder.write(even)


class _Encoder:
    """An ffmpeg process that is written to.

    imageio's own writer forks this process (for a group of its own), which jax's threads may not survive.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], frames_per_second: float) -> None:
        from imageio_ffmpeg import get_ffmpeg_exe

        raw = f"-f rawvideo -pix_fmt rgb24 -s {shape[1]}x{shape[0]} -framerate {frames_per_second} -i -"
        written = "-an -c:v libx264 -pix_fmt yuv420p -movflags +faststart"
        self._process = subprocess.Popen(
            [get_ffmpeg_exe(), "-y", "-loglevel", "error", *raw.split(), *written.split(), str(path.absolute())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=0,  # Ctrl-C is ours to answer
        )

    def write(self, frame: np.ndarray) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(np.ascontiguousarray(frame).data)
        except BrokenPipeError:
            self.close()
            raise

    def close(self) -> None:
        """Waits until the file is whole. Raises UserError if it does not become so."""
        try:
            _, said = self._process.communicate(timeout=_ENCODER_SECONDS)
        except subprocess.TimeoutExpired as error:
            self._process.kill()
            self._process.communicate()
            raise UserError(f"ffmpeg did not end within {_ENCODER_SECONDS} s: is the disk full or slow?") from error
        if self._process.returncode:
            shown = " ".join(said.decode(errors="replace").split())[-300:]
            raise UserError(f"ffmpeg could not write the video (status {self._process.returncode}): {shown}")
