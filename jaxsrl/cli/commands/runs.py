"""`jaxsrl runs`."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, Literal

import tyro

from jaxsrl.terminal.format import format_age, format_number

_MOST_STYLED = 1000  # a styled table of 10,000 rows takes half a minute
SortBy = Literal["name", "age", "evaluation", "training", "progress", "state", "env", "agent"]


@dataclasses.dataclass(frozen=True)
class Runs:
    """List runs: state, progress, evaluation return (greedy episodes after training) and training return (last 100 episodes).

    Attributes:
        directory: Directory of runs, including subdirectories; or one run.
        sort: "age" puts the newest first, "evaluation", "training" (returns) and "progress" the largest.
        state: list only those that are running, finished, stopped (by a signal), crashed or empty.
        json: print one JSON object instead of a table.
    """

    directory: tyro.conf.Positional[Path] = Path("runs")
    sort: SortBy = "name"
    state: tuple[Literal["running", "finished", "stopped", "crashed", "empty"], ...] = ()
    json: bool = False

    def run(self) -> int:
        """Prints the list."""
        from jaxsrl.runs.summary import find_runs, summarize

        summaries = [summarize(path, self.directory) for path in find_runs(self.directory)]
        rows = [dataclasses.asdict(run) for run in summaries if not self.state or run.state in self.state]
        rows.sort(key=lambda row: _order(row, self.sort))
        if self.json:
            print(json.dumps({"runs": rows}))  # noqa: T201
        else:
            _print_table(rows, self.directory)
        return 0


def _order(row: dict[str, Any], by: SortBy) -> tuple[bool, Any, str]:
    """Returns a sort key with unknown values last and equal values by name."""
    columns = {"age": "age_seconds", "evaluation": "evaluation_return", "training": "training_return"}
    value = row[columns.get(by, by)]
    value = None if value == "" else value
    largest_first = by in ("evaluation", "training", "progress")
    return value is None, -value if largest_first and value is not None else value or 0.0, row["name"]


def _print_table(rows: list[dict[str, Any]], directory: Path) -> None:
    from rich.console import Console
    from rich.text import Text

    from jaxsrl.terminal.tables import make_table

    console = Console(file=sys.stdout)
    if not rows:
        console.print(f"no runs in {directory}", highlight=False)
        return
    if not console.is_terminal:
        console.width = 200  # lines keep their length in a pipe
    colors = {"running": "cyan", "finished": "green", "stopped": "yellow", "crashed": "red", "empty": "bright_black"}
    returns = ("evaluation return", "training return")
    columns = ("run", "state", "done", *returns, "env steps", "env", "agent", "plan", "seed", "age")
    right = ("done", *returns, "env steps", "seed", "age")
    cells = [_cells(row) for row in rows]
    if len(rows) > _MOST_STYLED:
        widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
        for line in (columns, *cells):
            aligned = zip(columns, line, widths, strict=True)
            padded = [f"{cell:>{width}}" if name in right else f"{cell:<{width}}" for name, cell, width in aligned]
            print("  ".join(padded))  # noqa: T201
    else:
        table = make_table(columns, right)
        for row, (name, state, *others) in zip(rows, cells, strict=True):
            table.add_row(Text(name), Text(state, colors[row["state"]]), *map(Text, others))
        console.print(table)
    for row in rows:
        if row["problem"]:
            console.print(f"{row['name']}: {row['problem']}", highlight=False, markup=False)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    returns = (row["evaluation_return"], row["training_return"])
    return (
        row["name"],
        row["state"],
        "-" if row["progress"] is None else f"{row['progress']:.0%}",
        *("-" if value is None else format_number(value) for value in returns),
        f"{row['env_steps']:,}",
        *(str("-" if row[name] in ("", None) else row[name]) for name in ("env", "agent", "plan", "seed")),
        format_age(row["age_seconds"]),
    )
