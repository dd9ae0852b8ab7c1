"""Files that show open-loop predictions: pictures with curves of numbers, and videos with images side by side."""

# matplotlib's types are incomplete:
# pyright: reportUnknownMemberType=false, reportArgumentType=false

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxsrl.evaluation.predictions.open_loop import OpenLoop
from jaxsrl.evaluation.video_file import video_file
from jaxsrl.plots.style import INK, clean_axes, color, save, style

MOST_CURVES = 24
_COLUMNS = 2
_IMAGE_PIXELS = 192  # least height of an enlarged image
_BAR_PIXELS = 8
_FRAMES_PER_SECOND = 10.0  # slow enough to compare images
_SEEN_COLOR, _PREDICTED_COLOR = (0, 114, 178), (213, 94, 0)


def record_predictions(open_loop: OpenLoop, video: Path) -> dict[str, Any]:
    """Writes predictions next to a video, of images as NAME_predicted.mp4 and of numbers as NAME_predicted.png.

    Args:
        open_loop: real and predicted observations.
        video: file *.mp4 of the episodes, whose name the files have.

    Returns:
        JSON data: the files, and the errors by leaf.

    Raises:
        UserError: If a file cannot be written.
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


def is_image(values: np.ndarray) -> bool:
    """Returns whether values of a leaf are images [T, H, W, C], and not numbers [T, V]."""
    return values.ndim == 4


def draw_numbers(open_loop: OpenLoop, path: Path) -> None:
    """Draws each number of the observation over env steps, real and predicted; seen steps are shaded. There is at least one.

    Only the first `MOST_CURVES` numbers are drawn.

    Raises:
        UserError: see `style.save`.
    """
    curves = [
        (name if real.shape[1] == 1 else f"{name} {index}", real[:, index], predicted[:, index])
        for name, (real, predicted) in open_loop.leaves.items()
        if not is_image(real)
        for index in range(real.shape[1])
    ]
    shown = curves[:MOST_CURVES]
    columns = min(_COLUMNS, len(shown))
    rows = math.ceil(len(shown) / columns)
    with style():
        figure = Figure(figsize=(4.6 * columns, 0.9 + 1.7 * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True).ravel()
        for axes, curve in zip(grid, shown, strict=False):
            _draw_curve(axes, open_loop, *curve)
        for axes in grid[len(shown) :]:
            axes.remove()
        for axes in grid[max(len(shown) - columns, 0) : len(shown)]:
            axes.set_xlabel("env steps")
        limit = f", {len(shown)} of {len(curves)} numbers" if len(shown) < len(curves) else ""
        figure.suptitle(f"{open_loop.env_id}: observations{limit}", x=0.01, ha="left", fontweight="bold", fontsize=11)
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside upper right", ncols=3, frameon=False)
        save(figure, path)


def _draw_curve(axes: Axes, open_loop: OpenLoop, name: str, real: np.ndarray, predicted: np.ndarray) -> None:
    steps, begins = np.arange(len(real)), np.flatnonzero(open_loop.is_first[1:]) + 1
    edges = np.flatnonzero(np.diff(open_loop.seen, prepend=False, append=False))
    for number, (begin, end) in enumerate(edges.reshape(-1, 2)):
        axes.axvspan(begin - 0.5, end - 0.5, color="#dddddd", linewidth=0, label=None if number else "seen")
    # Gaps between episodes, and where nothing is predicted.
    axes.plot(np.insert(steps, begins, begins), np.insert(real, begins, np.nan), color=INK, linewidth=1.4, label="real")
    axes.plot(steps, np.where(open_loop.seen, np.nan, predicted), color=color(1), linewidth=1.4, label="predicted")
    clean_axes(axes)
    axes.set_title(name, loc="left", fontsize=10)


def image_frames(open_loop: OpenLoop) -> Iterator[np.ndarray]:
    """Yields a frame [H, W, 3] uint8 of each step: real image, predicted image, and their difference around grey.

    Several images stand below each other. A blue bar marks steps that the agent saw, an orange one predicted steps.
    """
    images = [pair for pair in open_loop.leaves.values() if is_image(pair[0])]
    for step, seen in enumerate(open_loop.seen):
        rows = [_side_by_side(real[step], predicted[step]) for real, predicted in images]
        width = max(row.shape[1] for row in rows)
        bar = np.full((_BAR_PIXELS, width, 3), _SEEN_COLOR if seen else _PREDICTED_COLOR, np.uint8)
        padded = [np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0))) for row in rows]
        yield np.concatenate([bar, *padded])


def _side_by_side(real: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    panels = [real, predicted, 0.5 + 0.5 * (predicted - real)]
    joined = np.concatenate([_in_color(panel) for panel in panels], axis=1)
    factor = math.ceil(_IMAGE_PIXELS / len(real))
    return np.rint(255 * np.clip(joined, 0, 1)).astype(np.uint8).repeat(factor, 0).repeat(factor, 1)


def _in_color(image: np.ndarray) -> np.ndarray:
    """Returns three channels; of a grey image or a stack of frames the last one."""
    return image if image.shape[-1] == 3 else np.repeat(image[..., -1:], 3, axis=-1)
