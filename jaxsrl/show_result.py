"""Results on the terminal: a table for people, JSON for programs."""

import json
import sys
from typing import Any


def show(result: dict[str, Any], as_json: bool, title: str) -> None:
    """One result: a table of its single values, or all of it as a JSON object."""
    if as_json:
        print(json.dumps(result))  # noqa: T201
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, show_header=False)
    for name, value in result.items():
        if not isinstance(value, dict | list):
            table.add_row(name, f"{value:,.3f}" if isinstance(value, float) else str(value))
    Console(file=sys.stdout).print(table)


def show_rows(result: dict[str, Any], as_json: bool) -> None:
    """Lists of rows as a table each, single values below them."""
    if as_json:
        print(json.dumps(result))  # noqa: T201
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout)
    console.width = max(console.width, 160)
    for name, rows in result.items():
        if not isinstance(rows, list):
            console.print(f"{name}: {rows}")
            continue
        table = Table(title=name, title_justify="left", box=SIMPLE_HEAD)
        for column in rows[0]:
            table.add_column(column.replace("_", " "))
        for row in rows:
            table.add_row(*(f"{value:,.2f}" if isinstance(value, float) else f"{value}" for value in row.values()))
        console.print(table)


def age_in_words(seconds: float) -> str:
    """A span of time in its largest unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
