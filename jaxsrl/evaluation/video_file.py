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
        BadEnvOutputError: If a frame has another size than the previous one.
        UserError: ffmpeg fails.
    """
    partial_path = path.with_name(f".{path.stem}.{os.getpid()}.partial.mp4")
    encoder = _Encoder(partial_path, frames_per_second)
    try:
        try:
            yield encoder.write
        finally:
            encoder.close()
        partial_path.replace(path)
    finally:
        partial_path.unlink(missing_ok=True)


class _Encoder:
    """ffmpeg process that frames are written to, started with the first frame, which has the size of all.

    imageio's own writer forks this process (for its own process group), which is unsafe with jax's threads.
    """

    def __init__(self, path: Path, frames_per_second: float) -> None:
        self._path, self._frames_per_second = path, frames_per_second
        self._process: subprocess.Popen[bytes] | None = None
        self._shape: tuple[int, ...] = ()

    def write(self, frame: np.ndarray) -> None:
        height, width = frame.shape[:2]
        # Every player supports yuv420p, whose colors cover two by two pixels.
        even = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self._process is None:
            self._shape, self._process = frame.shape, self._start(*even.shape[:2])
        if frame.shape != self._shape:
            raise BadEnvOutputError(
                f"expected frames of one size in a video: got one of {frame.shape} after {self._shape}"
            )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(np.ascontiguousarray(even).data)
        except BrokenPipeError:
            self.close()
            raise

    def _start(self, height: int, width: int) -> "subprocess.Popen[bytes]":
        from imageio_ffmpeg import get_ffmpeg_exe

        raw = f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -framerate {self._frames_per_second} -i -"
        written = "-an -c:v libx264 -pix_fmt yuv420p -movflags +faststart"
        return subprocess.Popen(
            [get_ffmpeg_exe(), "-y", "-loglevel", "error", *raw.split(), *written.split(), str(self._path.absolute())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=0,  # this process handles Ctrl-C
        )

    def close(self) -> None:
        """Waits until the file is complete; idempotent. Raises UserError if ffmpeg fails."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            _, errors = process.communicate(timeout=_ENCODER_SECONDS)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise UserError(f"ffmpeg did not end within {_ENCODER_SECONDS} s: is the disk full or slow?") from error
        if process.returncode:
            shown = " ".join(errors.decode(errors="replace").split())[-300:]
            raise UserError(f"ffmpeg could not write the video (status {process.returncode}): {shown}")
