"""Runs compared: curves, scores and a picture of both."""

# matplotlib says only partly which types it takes:
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
from jaxsrl.plots.grouping import group_curves
from jaxsrl.plots.run_curve import COLUMNS, XAxis, read_curves
from jaxsrl.plots.scores import Bounds, Score, scores_by_method
from jaxsrl.plots.style import save, style

_PANEL_WIDTH, _PANEL_HEIGHT, _AGGREGATE_HEIGHT, _LEGEND_HEIGHT = 5.6, 3.7, 2.9, 0.28


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Runs, read and compared.

    Attributes:
        x: what curves are over.
        metric: what they are of.
        drawn: groups of runs with their mean curves, those of one environment next to each other.
        methods: normalised scores of each method by environment; {} where there is one environment.
        estimates: by statistic and method.
        improvement: (method, other method) -> probability that a run of the one is better than a run of the other.
        warnings: what was left out, a line each.
    """

    x: XAxis
    metric: str
    drawn: tuple[GroupCurve, ...]
    methods: Mapping[str, Scores]
    estimates: Mapping[str, Mapping[str, Estimate]]
    improvement: Mapping[tuple[str, str], Estimate]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON data: curves with their means and intervals, and aggregates."""
        return {
            "x": self.x,
            "metric": self.metric,
            "groups": [_group_to_json(one) for one in self.drawn],
            "aggregate": {
                name: {label: dataclasses.asdict(found) for label, found in by_label.items()}
                for name, by_label in self.estimates.items()
            },
            "probability_of_improvement": [
                {"of": one, "over": other, **dataclasses.asdict(found)}
                for (one, other), found in self.improvement.items()
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
        x: what curves are over.
        metric: what they are of.
        by: fields that tell groups apart; as `group_curves`.
        score: what a run is worth where several environments are compared.
        bounds: that normalise scores; as `scores_by_method`.

    Raises:
        UserError: something of this cannot be.
    """
    curves, left_out = read_curves(paths, x, metric)
    groups = group_curves(curves, by)
    env_ids = sorted({group.env_id for group in groups})
    groups.sort(key=lambda group: env_ids.index(group.env_id))
    drawn = tuple(GroupCurve(group, mean_curve([(curve.x, curve.y) for curve in group.curves])) for group in groups)
    warnings = [*left_out, *(line for one in drawn for line in _cut(one, x))]
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
    """Draws it into `path`: a panel for each environment, and the aggregates below where there are several.

    Raises:
        UserError: as `style.save`.
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
            for axes, (name, found) in zip(places, comparison.estimates.items(), strict=False):
                draw_estimates(axes, name, found, numbers)
            draw_profiles(places[-1], comparison.methods, numbers)
        draw_legend(parts[-1], [one.group for one in comparison.drawn], numbers, width)
        save(figure, path)


def _cut(one: GroupCurve, x: XAxis) -> list[str]:
    """Says where a group ends because one of its runs does."""
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
