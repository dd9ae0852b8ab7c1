"""Figures of aggregate scores over environments: estimates with intervals, and performance profiles."""

# matplotlib's types are incomplete:
# pyright: reportUnknownMemberType=false, reportArgumentType=false

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.axes import Axes

from jaxsrl.plots.aggregate import (
    Estimate,
    Scores,
    iqm,
    mean_of_means,
    median_of_means,
    optimality_gap,
    performance_profile,
)
from jaxsrl.plots.style import clean_axes, color, line

STATISTICS: dict[str, Callable[[Scores], np.ndarray]] = {
    "IQM": iqm,
    "median": median_of_means,
    "mean": mean_of_means,
    "optimality gap": optimality_gap,
}
_PROFILE_POINTS = 101


def draw_estimates(axes: Axes, title: str, estimates: Mapping[str, Estimate], numbers: dict[str, int]) -> None:
    """Draws one statistic: for each method, from top to bottom, a bar over its interval and a mark at its value."""
    for row, (label, estimated) in enumerate(estimates.items()):
        axes.barh(
            row, estimated.high - estimated.low, left=estimated.low, height=0.6, color=color(numbers[label]), alpha=0.35
        )
        axes.vlines(estimated.value, row - 0.3, row + 0.3, color=color(numbers[label]), linewidth=2.4)
    axes.use_sticky_edges = False
    axes.margins(x=0.1)
    axes.set_ylim(len(estimates) - 0.4, -0.6)
    axes.set_yticks([])
    clean_axes(axes)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel("normalized score")


def draw_profiles(axes: Axes, methods: Mapping[str, Scores], numbers: dict[str, int]) -> None:
    """Draws the fraction of runs above each score. A method whose curve is above another everywhere is better."""
    every = np.concatenate([scores for method in methods.values() for scores in method])
    thresholds = np.linspace(min(0.0, float(every.min())), float(every.max()), _PROFILE_POINTS)
    for label, scores in methods.items():
        share, low, high = performance_profile(scores, thresholds)
        number = numbers[label]
        axes.fill_between(thresholds, low, high, color=color(number), alpha=0.2, linewidth=0, step="post")
        axes.step(thresholds, share, where="post", color=color(number), linestyle=line(number), linewidth=1.8)
    clean_axes(axes)
    axes.set_ylim(-0.02, 1.05)
    axes.set_title("performance profile", loc="left", fontweight="bold")
    axes.set_xlabel("normalized score")
    axes.set_ylabel("share of runs above it")
