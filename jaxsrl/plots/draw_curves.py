"""Figures of curves with intervals, one panel per environment, and one legend for all."""

# matplotlib's types are incomplete:
# pyright: reportUnknownMemberType=false, reportArgumentType=false

import dataclasses
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.lines import Line2D

from jaxsrl.plots.axis_labels import metric_label, x_label
from jaxsrl.plots.bootstrap import MeanCurve
from jaxsrl.plots.grouping import Group
from jaxsrl.plots.run_curve import XAxis
from jaxsrl.plots.style import clean_axes, color, count_axis, line


@dataclasses.dataclass(frozen=True, eq=False)
class GroupCurve:
    """Group of runs with its mean curve."""

    group: Group
    mean: MeanCurve


def draw_panel(axes: Axes, drawn: Sequence[GroupCurve], numbers: dict[str, int], x: XAxis, metric: str) -> None:
    """Draws the groups of one environment; `numbers` has the color index of each label."""
    longest = max((float(one.mean.x[-1]) for one in drawn if len(one.mean.x)), default=0.0)
    label, unit = x_label(x, longest, (curve for one in drawn for curve in one.group.curves))
    for one in drawn:
        number = numbers[one.group.label]
        if not len(one.mean.x):
            continue
        if len(one.group.curves) > 1:
            axes.fill_between(
                one.mean.x / unit, one.mean.low, one.mean.high, color=color(number), alpha=0.2, linewidth=0
            )
        if np.ptp(one.mean.x) == 0:
            axes.plot(one.mean.x[:1] / unit, one.mean.mean[:1], "o", color=color(number))
        else:
            axes.plot(one.mean.x / unit, one.mean.mean, color=color(number), linestyle=line(number), linewidth=1.8)
    clean_axes(axes)
    if x != "time":
        count_axis(axes)
    axes.margins(x=0.01)
    axes.set_xlabel(label)
    axes.set_ylabel(metric_label(metric))
    axes.set_title(drawn[0].group.env_id, loc="left", fontweight="bold")


def draw_legend(figure: FigureBase, groups: Sequence[Group], numbers: dict[str, int], width: float) -> None:
    """Draws one legend for all panels of a figure `width` inches wide, with the number of runs of each method."""
    handles: list[Line2D] = []
    for label, number in numbers.items():
        sizes = sorted({len(group.curves) for group in groups if group.label == label})
        runs = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        text = f"{label} ({runs} {'run' if sizes == [1] else 'runs'})"
        handles.append(Line2D([], [], color=color(number), linestyle=line(number), linewidth=2.4, label=text))
    figure.legend(handles=handles, loc="center", ncols=_legend_columns(list(numbers), width), frameon=False)


def legend_rows(labels: Sequence[str], width: float) -> int:
    """Returns the number of legend rows in a figure of `width` inches."""
    return -(-len(labels) // _legend_columns(labels, width))


def _legend_columns(labels: Sequence[str], width: float) -> int:
    inches = 0.08 * max(len(label) for label in labels) + 1.5  # of the longest label, with its line and number of runs
    return max(1, min(len(labels), int(width / inches)))
