"""Figure of the evaluations of a run's checkpoints."""

# matplotlib's types are incomplete:
# pyright: reportUnknownMemberType=false, reportArgumentType=false

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from jaxsrl.evaluation.all_checkpoints import CheckpointEvaluation
from jaxsrl.plots.style import clean_axes, color, count_axis, save, style


def draw_evaluations(evaluations: Sequence[CheckpointEvaluation], path: Path) -> None:
    """Draws mean return with its interval over episodes, at each checkpoint's env steps. There is at least one, oldest first.

    Raises:
        UserError: see `style.save`.
    """
    steps = [one.env_steps for one in evaluations]
    report = evaluations[-1].report
    with style():
        figure = Figure(figsize=(6.8, 4.0), layout="constrained")
        axes = figure.subplots()
        axes.fill_between(
            steps,
            [one.low for one in evaluations],
            [one.high for one in evaluations],
            color=color(0),
            alpha=0.2,
            linewidth=0,
        )
        axes.plot(
            steps, [one.report.mean_return for one in evaluations], "o-", color=color(0), linewidth=1.8, markersize=5
        )
        clean_axes(axes)
        count_axis(axes)
        axes.set_xlabel("env steps trained")
        kind = "greedy" if report.greedy else "sampled"
        axes.set_ylabel(f"evaluation return, mean of {len(report.returns)} {kind} episodes")
        axes.set_title(f"{report.env_id}, each checkpoint with its 95 % interval", loc="left", fontweight="bold")
        save(figure, path)
