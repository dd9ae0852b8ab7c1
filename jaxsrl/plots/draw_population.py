"""Picture of a population: family tree, options over the rounds, payoffs and ratings."""

# matplotlib's types are incomplete:
# pyright: reportUnknownMemberType=false, reportArgumentType=false

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from envpool_bridge.errors import UserError
from jaxsrl.plots.style import FAINT, clean_axes, color, save, style, validate_out
from jaxsrl.runs.population import read_population


def draw_population(directory: Path, out: Path) -> None:
    """Draws the population of a directory into a file.

    Raises:
        UserError: If there is no population with a complete round, or the file cannot be written.
    """
    validate_out(out)
    population = read_population(directory)
    runs = population["runs"]
    if not runs:
        raise UserError(f"{directory} has no complete round yet")
    options = [name for name, value in runs[0]["options"].items() if isinstance(value, int | float)]
    panels = [
        "tree",
        *options,
        *(["payoffs"] if population["payoffs"] else []),
        *(["ratings"] if population["ratings"] else []),
    ]
    with style():
        figure = Figure(figsize=(7.5, 3.6 * len(panels)), layout="constrained")
        for panel, axes in zip(panels, np.atleast_1d(figure.subplots(len(panels), 1)), strict=True):
            if panel == "tree":
                _draw_tree(axes, runs, population["score"])
            elif panel == "payoffs":
                _draw_payoffs(axes, population)
            elif panel == "ratings":
                _draw_ratings(axes, population)
            else:
                _draw_option(axes, runs, panel)
        save(figure, out)


def _draw_tree(axes: Axes, runs: Sequence[Mapping[str, Any]], score: str) -> None:
    """Draws a point for each run, by round and player, with a line from the run that it started with."""
    players = sorted({run["player"] for run in runs})
    place = {run["name"]: (run["round"], players.index(run["player"])) for run in runs}
    for run in runs:
        if run["parent"] in place:
            axes.plot(*zip(place[run["parent"]], place[run["name"]], strict=True), color=FAINT, linewidth=1.2, zorder=1)
    x, y = np.array([place[run["name"]] for run in runs]).T
    points = axes.scatter(x, y, c=[_number(run["score"]) for run in runs], cmap="viridis", s=60, zorder=2)
    axes.figure.colorbar(points, ax=axes, label=score)
    axes.set_yticks(range(len(players)), players)
    axes.set_xlabel("round")
    axes.set_title("Family tree", loc="left")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_option(axes: Axes, runs: Sequence[Mapping[str, Any]], option: str) -> None:
    """Draws the value of an option over the rounds, a line for each descent."""
    by_name = {run["name"]: run for run in runs}
    for run in runs:
        start = by_name.get(run["parent"], run)
        rounds, values = (start["round"], run["round"]), (start["options"][option], run["options"][option])
        axes.plot(rounds, values, color=color(0), linewidth=1.2, marker=".", alpha=0.7)
    values = [run["options"][option] for run in runs]
    if min(values) > 0 and max(values) > 20 * min(values):
        axes.set_yscale("log")
    axes.set_xlabel("round")
    axes.set_title(option, loc="left")
    clean_axes(axes)


def _draw_payoffs(axes: Axes, population: Mapping[str, Any]) -> None:
    payoffs, names = np.array(population["payoffs"]), [run["name"] for run in population["runs"]]
    middle = 0.5 if population["kind"] == "league" else 0.0
    reach = max(float(np.abs(payoffs - middle).max()), 1e-9)
    image = axes.imshow(payoffs, cmap="RdBu", vmin=middle - reach, vmax=middle + reach)
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_title("Payoffs of the row against the column", loc="left")
    axes.figure.colorbar(image, ax=axes, label=population["payoff"])


def _draw_ratings(axes: Axes, population: Mapping[str, Any]) -> None:
    names, ratings = [run["name"] for run in population["runs"]], population["ratings"]
    axes.errorbar(ratings, range(len(names)), xerr=population["errors"], fmt="o", color=color(0), capsize=3)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_xlabel("rating, with its standard error")
    axes.set_title("Ratings", loc="left")
    clean_axes(axes)


def _number(score: float | None) -> float:
    return float("nan") if score is None else score
