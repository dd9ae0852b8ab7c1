"""The evaluations of a run's checkpoints as a curve."""

# matplotlib says only partly which types it takes:
# pyright: reportUnknownMemberType=false, reportArgumentType=false

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from jaxsrl.evaluation.all_checkpoints import CheckpointEvaluation
from jaxsrl.plots.style import clean_axes, color, count_axis, save, style


def draw_evaluations(found: Sequence[CheckpointEvaluation], path: Path) -> None:
    """Mean return with its interval over episodes, at each checkpoint's env steps.

    Args:
        found: at least one, oldest first.
        path: ends in .png, .svg or .pdf.

    Raises:
        UserError: as `style.save`.
    """
    steps = [one.env_steps for one in found]
    report = found[-1].report
    with style():
        figure = Figure(figsize=(6.8, 4.0), layout="constrained")
        axes = figure.subplots()
        axes.fill_between(
            steps, [one.low for one in found], [one.high for one in found], color=color(0), alpha=0.2, linewidth=0
        )
        axes.plot(steps, [one.report.mean_return for one in found], "o-", color=color(0), linewidth=1.8, markersize=5)
        clean_axes(axes)
        count_axis(axes)
        axes.set_xlabel("env steps trained")
        kind = "greedy" if report.greedy else "sampled"
        axes.set_ylabel(f"mean return of {len(report.returns)} {kind} episodes")
        axes.set_title(f"{report.env_id}, each checkpoint with its 95 % interval", loc="left", fontweight="bold")
        save(figure, path)
