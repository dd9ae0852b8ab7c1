"""Video files: frames written as H.264 by ffmpeg."""

import contextlib
import importlib.util
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from envpool_bridge.errors import BadEnvOutputError, UserError

_ENCODER_SECONDS = 60.0  # limit for finishing the file


def validate_video_path(path: Path) -> None:
    """Raises a UserError if no video can be written to this path, or the package that writes it is missing."""
    if path.suffix != ".mp4" or not path.parent.is_dir() or path.is_dir():
        raise UserError(f"expected the video to be a file *.mp4 in an existing directory, got {path}")
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise UserError("imageio-ffmpeg is not installed, which writes videos: pip install 'jaxsrl[video]'")


@contextlib.contextmanager
def video_file(path: Path, frames_per_second: float) -> Iterator[Callable[[np.ndarray], None]]:
    """Yields a function that writes a frame [H, W, 3] uint8. The file appears when it is complete.

    Raises:
        BadEnvOutputError: a frame has another size than the previous one.
        UserError: ffmpeg fails.
    """
    partial_path = path.with_name(f".{path.stem}.{os.getpid()}.partial.mp4")
    writer = _Writer(partial_path, frames_per_second)
    try:
        try:
            yield writer.write
        finally:
            writer.close()
        partial_path.replace(path)
    finally:
        partial_path.unlink(missing_ok=True)


class _Writer:
    """Writer of frames, which starts the encoder when it knows their size."""

    def __init__(self, path: Path, frames_per_second: float) -> None:
        self._path, self._frames_per_second = path, frames_per_second
        self._encoder: _Encoder | None = None
        self._shape: tuple[int, ...] = ()

    def write(self, frame: np.ndarray) -> None:
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

    def close(self) -> None:
        if self._encoder is not None:
            self._encoder.close()
            self._encoder = None


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
