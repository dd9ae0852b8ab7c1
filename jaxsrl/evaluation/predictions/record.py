"""Files that show open-loop predictions, and their errors."""

from pathlib import Path
from typing import Any

from jaxsrl.evaluation.predictions.draw import draw_numbers, image_frames, is_image
from jaxsrl.evaluation.predictions.open_loop import OpenLoop
from jaxsrl.evaluation.video_file import video_file

_FRAMES_PER_SECOND = 10.0  # slow enough to compare images


def record_predictions(open_loop: OpenLoop, video: Path) -> dict[str, Any]:
    """Writes predictions next to a video, of images as NAME_predicted.mp4 and of numbers as NAME_predicted.png.

    Args:
        open_loop: real and predicted observations.
        video: file *.mp4 of the episodes, whose name the files have.

    Returns:
        JSON data: the files, and the errors by leaf.

    Raises:
        UserError: a file cannot be written.
    """
    kinds = {is_image(real) for real, _ in open_loop.leaves.values()}
    files: list[Path] = []
    if True in kinds:
        files.append(video.with_name(f"{video.stem}_predicted.mp4"))
        with video_file(files[-1], _FRAMES_PER_SECOND) as write:
            for frame in image_frames(open_loop):
                write(frame)
    if False in kinds:
        files.append(video.with_name(f"{video.stem}_predicted.png"))
        draw_numbers(open_loop, files[-1])
    return {
        "files": [str(file) for file in files],
        "open_loop_error": open_loop.errors(),
        "open_loop_error_if_unchanged": open_loop.errors_if_unchanged(),
    }
