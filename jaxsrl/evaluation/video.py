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
_ENCODER_SECONDS = 60.0  # limit for finishing the file


class Video:
    """Video of environments. The constructor raises before anything is played if recording is impossible.

    Whole games are played where training's episodes are changed for learning.

    Args:
        make_env: see `evaluate`.
        path: file *.mp4, which is replaced if it exists.
        episodes: number of episodes, one after another.

    Raises:
        UserError: a bad path or number, a package is missing, or the environment or this machine cannot draw.
    """

    def __init__(self, make_env: AnyEnv, path: Path, episodes: int = 1) -> None:
        if episodes < 1:
            raise UserError(f"video_episodes must be at least 1: got {episodes}")
        if path.suffix != ".mp4" or not path.parent.is_dir() or path.is_dir():
            raise UserError(f"expected the video to be a file *.mp4 in an existing directory, got {path}")
        if importlib.util.find_spec("imageio_ffmpeg") is None:
            raise UserError("imageio-ffmpeg is not installed, which writes videos: pip install 'jaxsrl[video]'")
        _draw_without_display()
        source = as_source(make_env)
        whole_games = getattr(source, "for_evaluation", None)
        self._source, self._frames_per_second = rendering(whole_games() if whole_games is not None else source)
        self._path, self._episodes = path, episodes

    def record(self, agent: AnyAgent, params: Params, *, seed: int = 0, mode: Mode = Mode.GREEDY) -> EvaluationReport:
        """Plays the episodes of `evaluate(..., seed=seed, mode=mode, max_rows=1)`, and writes them.

        The file appears when it is complete. Between two episodes the last frame stays for half a second.

        Returns:
            The results of the shown episodes.

        Raises:
            BadEnvOutputError: a frame has another size than the previous one.
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
    """Makes MuJoCo and pygame draw into memory on machines without a screen, unless their variables are set."""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # the prompt would precede the command's JSON


class _Film:
    """Consumer of frames that writes episodes one after another into a file."""

    def __init__(self, path: Path, frames_per_second: float) -> None:
        self._path, self._frames_per_second = path, frames_per_second
        self._encoder: _Encoder | None = None
        self._first: np.ndarray | None = None  # of an episode without a step yet
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
        # Every player supports yuv420p, whose colors cover two by two pixels.
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
    """ffmpeg process that is written to.

    imageio's own writer forks this process (for its own process group), which is unsafe with jax's threads.
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
            process_group=0,  # this process handles Ctrl-C
        )

    def write(self, frame: np.ndarray) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(np.ascontiguousarray(frame).data)
        except BrokenPipeError:
            self.close()
            raise

    def close(self) -> None:
        """Waits until the file is complete. Raises UserError if ffmpeg fails."""
        try:
            _, errors = self._process.communicate(timeout=_ENCODER_SECONDS)
        except subprocess.TimeoutExpired as error:
            self._process.kill()
            self._process.communicate()
            raise UserError(f"ffmpeg did not end within {_ENCODER_SECONDS} s: is the disk full or slow?") from error
        if self._process.returncode:
            shown = " ".join(errors.decode(errors="replace").split())[-300:]
            raise UserError(f"ffmpeg could not write the video (status {self._process.returncode}): {shown}")
