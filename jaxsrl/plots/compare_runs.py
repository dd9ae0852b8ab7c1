"""Comparison of runs: curves, scores and a figure of both."""

# matplotlib's types are incomplete:
# pyright: reportUnknownMemberType=false, reportArgumentType=false

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from jaxsrl.plots.aggregate import Estimate, Scores, estimate, estimate_improvement
from jaxsrl.plots.bootstrap import mean_curve
from jaxsrl.plots.draw_aggregate import STATISTICS, draw_estimates, draw_profiles
from jaxsrl.plots.draw_curves import GroupCurve, draw_legend, draw_panel, legend_rows
from jaxsrl.plots.grouping import count_seeds_once, group_curves
from jaxsrl.plots.run_curve import COLUMNS, XAxis, read_curves
from jaxsrl.plots.scores import Bounds, Score, scores_by_method
from jaxsrl.plots.style import save, style

_PANEL_WIDTH, _PANEL_HEIGHT, _AGGREGATE_HEIGHT, _LEGEND_HEIGHT = 5.6, 3.7, 2.9, 0.28


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Result of reading and comparing runs.

    Attributes:
        x: x axis of the curves.
        metric: metric of the curves.
        drawn: groups of runs with their mean curves, ordered by environment.
        methods: normalized scores of each method by environment; {} for a single environment.
        estimates: estimates by statistic and method.
        improvement: (method, other method) -> probability that a run of the first is better than a run of the second.
        warnings: what was skipped, one line each.
    """

    x: XAxis
    metric: str
    drawn: tuple[GroupCurve, ...]
    methods: Mapping[str, Scores]
    estimates: Mapping[str, Mapping[str, Estimate]]
    improvement: Mapping[tuple[str, str], Estimate]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns JSON data: curves with their means and intervals, and aggregates."""
        return {
            "x": self.x,
            "metric": self.metric,
            "groups": [_group_to_json(one) for one in self.drawn],
            "aggregate": {
                name: {label: dataclasses.asdict(estimated) for label, estimated in by_label.items()}
                for name, by_label in self.estimates.items()
            },
            "probability_of_improvement": [
                {"of": one, "over": other, **dataclasses.asdict(estimated)}
                for (one, other), estimated in self.improvement.items()
            ],
            "warnings": list(self.warnings),
        }


def compare_runs(
    paths: list[Path],
    x: XAxis,
    metric: str,
    by: Sequence[str] = (),
    score: Score = "last",
    bounds: Bounds | None = None,
) -> Comparison:
    """Reads runs and compares them.

    Args:
        paths: runs, and directories of runs.
        x: x axis of the curves.
        metric: metric of the curves.
        by: fields that separate groups; see `group_curves`.
        score: score of a run, to compare methods over several environments.
        bounds: bounds that normalize scores; see `scores_by_method`.

    Raises:
        UserError: If there are no runs, or no such metric, field or score.
    """
    curves, skipped = read_curves(paths, x, metric)
    counted = [count_seeds_once(group) for group in group_curves(curves, by)]
    groups, repeated = [group for group, _ in counted], [line for _, lines in counted for line in lines]
    env_ids = sorted({group.env_id for group in groups})
    groups.sort(key=lambda group: env_ids.index(group.env_id))
    drawn = tuple(GroupCurve(group, mean_curve([(curve.x, curve.y) for curve in group.curves])) for group in groups)
    warnings = [*skipped, *repeated, *(line for one in drawn for line in _describe_end(one, x))]
    methods: Mapping[str, Scores] = {}
    if len(env_ids) > 1:
        methods, absent = scores_by_method(groups, score, bounds)
        warnings += absent
    estimates = {
        name: {label: estimate(scores, statistic) for label, scores in methods.items()}
        for name, statistic in STATISTICS.items()
        if methods
    }
    improvement = {
        (one, other): estimate_improvement(methods[one], methods[other])
        for one in methods
        for other in methods
        if one != other
    }
    return Comparison(x, metric, drawn, methods, estimates, improvement, tuple(warnings))


def draw_comparison(comparison: Comparison, path: Path) -> None:
    """Draws a panel for each environment into `path`, and the aggregates below if there are several.

    Raises:
        UserError: see `style.save`.
    """
    by_env: dict[str, list[GroupCurve]] = {}
    for one in comparison.drawn:
        by_env.setdefault(one.group.env_id, []).append(one)
    numbers = {label: number for number, label in enumerate(dict.fromkeys(one.group.label for one in comparison.drawn))}
    columns = 2 if len(by_env) == 4 else min(len(by_env), 3)
    rows = -(-len(by_env) // columns)
    width = max(_PANEL_WIDTH * columns, 11.2) if comparison.methods else max(_PANEL_WIDTH * columns, 6.8)
    legend = _LEGEND_HEIGHT * legend_rows(list(numbers), width) + 0.15
    heights = [_PANEL_HEIGHT * rows, *([_AGGREGATE_HEIGHT] if comparison.methods else []), legend]
    with style():
        figure = Figure(figsize=(width, sum(heights)), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        panels = parts[0].subplots(rows, columns, squeeze=False).ravel()
        for axes, drawn in zip(panels, by_env.values(), strict=False):
            draw_panel(axes, drawn, numbers, comparison.x, comparison.metric)
        for axes in panels[len(by_env) :]:
            axes.set_axis_off()
        if comparison.methods:
            places = parts[1].subplots(1, len(STATISTICS) + 1, width_ratios=[1] * len(STATISTICS) + [1.7])
            for axes, (name, estimates) in zip(places, comparison.estimates.items(), strict=False):
                draw_estimates(axes, name, estimates, numbers)
            draw_profiles(places[-1], comparison.methods, numbers)
        draw_legend(parts[-1], [one.group for one in comparison.drawn], numbers, width)
        save(figure, path)


def _describe_end(one: GroupCurve, x: XAxis) -> list[str]:
    """Describes where a group ends because one of its runs does."""
    ends = np.array([curve.x[-1] for curve in one.group.curves])
    shortest = one.group.curves[int(ends.argmin())]
    if not len(one.mean.x):
        return [f"{one.group.label} in {one.group.env_id} is not drawn: its runs have no {COLUMNS[x]} in common"]
    if ends.min() >= 0.9 * ends.max():
        return []
    return [
        f"{one.group.label} in {one.group.env_id} is drawn up to {ends.min():,.0f} {COLUMNS[x]}, where {shortest.path} ends; "
        f"another of its runs goes to {ends.max():,.0f}"
    ]


def _group_to_json(one: GroupCurve) -> dict[str, Any]:
    mean = one.mean
    return {
        "env_id": one.group.env_id,
        "label": one.group.label,
        "runs": [str(curve.path) for curve in one.group.curves],
        "x": mean.x.tolist(),
        "mean": mean.mean.tolist(),
        "low": mean.low.tolist(),
        "high": mean.high.tolist(),
    }
