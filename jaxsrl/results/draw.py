"""Learning curves of the results page, one picture a task."""

# matplotlib's types are incomplete:
# pyright: reportUnknownMemberType=false

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from envpool_bridge.errors import UserError
from jaxsrl.plots.bootstrap import mean_curve, student_interval
from jaxsrl.plots.draw_curves import GroupCurve, draw_legend, draw_panel, legend_rows
from jaxsrl.plots.grouping import Group
from jaxsrl.plots.run_curve import RunCurve
from jaxsrl.plots.style import save, style
from jaxsrl.results.curve import POINTS
from jaxsrl.results.page import PICTURES, format_page, group_results
from jaxsrl.results.record import Result, folder_name, read_results
from jaxsrl.results.task_list import read_references

_WIDTH, _HEIGHT, _LEGEND_HEIGHT = 6.4, 3.6, 0.3


def draw_results(directory: Path, page: Path) -> int:
    """Writes the page of all results below `directory`, and its pictures next to it; equal results give equal bytes.

    Returns:
        Number of results.

    Raises:
        UserError: If a file cannot be read or written.
    """
    results = read_results(directory)
    text = format_page(results, read_references(directory))
    pictures = page.parent / PICTURES
    drawn: set[str] = set()
    try:
        pictures.mkdir(parents=True, exist_ok=True)
        for task, own in itertools.groupby(results, lambda result: result.task):
            path = pictures / f"{folder_name(task)}.svg"
            draw_task(list(own), path)
            drawn.add(path.name)
        # Only the page that is replaced proves that a picture is one of an earlier call.
        earlier = page.read_text() if page.exists() else ""
        for path in pictures.glob("*.svg"):
            if path.name not in drawn and f"({(PICTURES / path.name).as_posix()})" in earlier:
                path.unlink()
        page.write_text(text)
    except OSError as error:
        raise UserError(f"cannot write {error.filename}: {error.strerror}; choose another --page") from error
    return len(results)


def draw_task(results: Sequence[Result], path: Path) -> None:
    """Draws the mean curve of each group of results of one task, with Student's t interval over seeds."""
    drawn = [_group_curve(group) for group in group_results(results)]
    numbers = {one.group.label: number for number, one in enumerate(drawn)}
    legend = _LEGEND_HEIGHT * legend_rows(list(numbers), _WIDTH)
    with style():
        figure = Figure(figsize=(_WIDTH, _HEIGHT + legend), layout="constrained")
        panel, below = figure.subfigures(2, 1, height_ratios=[_HEIGHT, legend], squeeze=False)[:, 0]
        axes = panel.subplots()
        draw_panel(axes, drawn, numbers, "steps", "episode/return_mean")
        axes.set_ylim(return_limits([one.mean.mean for one in drawn]))
        draw_legend(below, [one.group for one in drawn], numbers, _WIDTH)
        save(figure, path)


def return_limits(means: Sequence[np.ndarray]) -> tuple[float, float]:
    """Returns the ends of the axis of returns: all means with a margin. Intervals of few seeds may be many times as wide.

    Args:
        means: [P] each; without any, the ends are those of one point at 0.
    """
    values = np.concatenate(means)
    if not len(values):
        return -1.0, 1.0
    low, high = float(values.min()), float(values.max())
    margin = 0.1 * (high - low) or 1.0
    return low - margin, high + margin


def _group_curve(group: Sequence[Result]) -> GroupCurve:
    first = group[0]
    label = first.preset if first.preset.startswith(first.algorithm) else f"{first.algorithm}, {first.preset}"
    curves = tuple(_run_curve(result) for result in group)
    mean = mean_curve([(curve.x, curve.y) for curve in curves], POINTS, student_interval)
    return GroupCurve(Group(first.task, label, curves), mean)


def _run_curve(result: Result) -> RunCurve:
    x, y = (np.array(result.curve[name], np.float64) for name in ("env_steps", "return_mean"))
    return RunCurve(result.file, {"env_spec": {"env_id": result.task}}, x, y)
