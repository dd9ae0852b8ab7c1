"""Picture of a sweep: parallel coordinates of its trials, and the importance of its options."""

# matplotlib's types are incomplete:
# pyright: reportUnknownMemberType=false, reportArgumentType=false

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from envpool_bridge.errors import UserError
from jaxsrl.config.files import flag_name
from jaxsrl.plots.style import FAINT, INK, clean_axes, color, save, style, validate_out
from jaxsrl.tune.report import TrialResult, measure_importance, read_results
from jaxsrl.tune.space import Choices, Range, Space
from jaxsrl.tune.study import read_sweep

_MAP = "viridis"


def draw_sweep(directory: Path, out: Path) -> dict[str, float]:
    """Draws a sweep into a file, and returns the importance of its options.

    Raises:
        UserError: If there is no sweep, fewer than two of its trials have a return, or the file cannot be written.
    """
    validate_out(out)
    sweep = read_sweep(directory)
    results = [each for each in read_results(directory, sweep) if each.value is not None]
    if len(results) < 2:
        raise UserError(f"a sweep is drawn from at least two trials with a return: {directory} has {len(results)}")
    importance, space = measure_importance(directory, sweep, results), sweep.parse_space()
    with style():
        figure = Figure(figsize=(2.0 + 1.6 * (len(space) + 1), 6.5), layout="constrained")
        lines, bars = figure.subplots(2, 1, height_ratios=(2.0, 1.0))
        _draw_lines(lines, results, space)
        _draw_bars(bars, importance)
        save(figure, out)
    return importance


def _draw_lines(axes: Axes, results: list[TrialResult], space: Space) -> None:
    """Draws a line for each trial over one vertical axis for each option and one for the return."""
    returns = np.array([each.value for each in results], float)
    low, high = float(returns.min()), float(returns.max())
    shades = (returns - low) / (high - low) if high > low else np.ones_like(returns)
    for i in np.argsort(returns):
        heights = [position(space[name], results[i].options[name]) for name in space]
        pruned = results[i].state != "complete"
        axes.plot(
            range(len(space) + 1),
            [*heights, shades[i]],
            color=colormaps[_MAP](0.9 * float(shades[i])),
            linestyle=":" if pruned else "-",
            linewidth=1.0 if pruned else 1.8,
        )
    ends = [_ends(space[name]) for name in space] + [(f"{low:.4g}", f"{high:.4g}")]
    for x, (bottom, top) in enumerate(ends):
        axes.axvline(x, color=FAINT, linewidth=0.8)
        axes.text(x, -0.03, bottom, ha="center", va="top", fontsize=8, color=FAINT)
        axes.text(x, 1.03, top, ha="center", va="bottom", fontsize=8, color=FAINT)
    axes.set_xticks(range(len(space) + 1), [*(flag_name(name).rpartition(".")[2] for name in space), "return"])
    axes.tick_params(axis="x", length=0, pad=14, labelcolor=INK)
    axes.set_ylim(-0.1, 1.1)
    axes.yaxis.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.set_title("Trials (dotted: pruned)", loc="left")


def position(entry: Range | Choices, value: Any) -> float:
    """Returns the height of a value on its axis, from 0 to 1."""
    if isinstance(entry, Choices):
        return entry.values.index(value) / max(1, len(entry.values) - 1)
    if entry.log:
        return math.log(value / entry.low) / math.log(entry.high / entry.low)
    return (value - entry.low) / (entry.high - entry.low)


def _ends(entry: Range | Choices) -> tuple[str, str]:
    if isinstance(entry, Choices):
        return str(entry.values[0]), str(entry.values[-1])
    return f"{entry.low:g}", f"{entry.high:g}"


def _draw_bars(axes: Axes, importance: dict[str, float]) -> None:
    """Draws the importance of each option as a bar, the largest on top."""
    names = sorted(importance, key=lambda name: importance[name])
    axes.barh([flag_name(name) for name in names], [importance[name] for name in names], color=color(0), height=0.6)
    clean_axes(axes)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("importance for the return (PED-ANOVA)")
