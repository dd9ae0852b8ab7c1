"""An inspection as tables on the terminal."""

import sys
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxsrl.runs.inspect import WHOLE, ArrayRow, Inspection
from jaxsrl.terminal.format import format_age, format_bytes

_MIN_WIDTH = 110


def print_inspection(found: Inspection, everything: bool) -> None:
    """Parameters, configuration, environment, versions and health; arrays that are no parameters too if `everything`."""
    console = Console(file=sys.stdout)
    console.width = max(console.width, _MIN_WIDTH)
    console.print(
        f"{found.agent or 'unknown agent'}, {found.checkpoint or 'no whole checkpoint'}", highlight=False, markup=False
    )
    if found.parameters:
        console.print(_arrays("parameters", found.parameters))
    if everything and found.others:
        console.print(_arrays("other arrays", found.others))
    elif found.others:
        held = format_bytes(sum(row.bytes for row in found.others))
        console.print(f"and {len(found.others)} other arrays ({held}): --everything shows them\n", highlight=False)
    for title, values in (
        ("configuration", flat(found.experiment)),
        ("environment", flat(found.spec)),
        ("written by", found.versions),
    ):
        if values:
            console.print(_values(title, values))
    if found.health:
        console.print(_values("health", _health(found.health)))


def flat(value: Any, path: str = "") -> dict[str, str]:
    """A JSON tree as one text for each leaf, named by its path."""
    if isinstance(value, dict) and value:
        return {
            name: text
            for part, item in value.items()
            for name, text in flat(item, f"{path}.{part}" if path else part).items()
        }
    return {path: str(value)}


def _arrays(title: str, rows: tuple[ArrayRow, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_footer=True)
    count, size = sum(row.count for row in rows), sum(row.bytes for row in rows)
    table.add_column("path", footer=f"{len(rows)} arrays", overflow="fold")
    table.add_column("shape")
    table.add_column("dtype")
    table.add_column("count", justify="right", footer=f"{count:,}")
    table.add_column("bytes", justify="right", footer=f"{size:,}")
    table.add_column("norm", justify="right")
    for row in rows:
        norm = "-" if row.norm is None else f"{row.norm:.4g}"
        if row.not_finite:
            norm = f"{row.not_finite:,} not finite"
        table.add_row(Text(row.path), Text(str(list(row.shape))), row.dtype, f"{row.count:,}", f"{row.bytes:,}", norm)
    return table


def _values(title: str, values: dict[str, str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 2))
    for name, value in values.items():
        table.add_row(name, Text(value))
    table.add_row("")
    return table


def _health(health: dict[str, Any]) -> dict[str, str]:
    wanted = health["num_updates"]
    shown = {
        "state": health["state"],
        "updates": f"{health['update']:,} of {wanted:,}" if wanted else f"{health['update']:,}",
        "env steps": f"{health['env_steps']:,}",
        "last record": f"{format_age(health['seconds_since_last_record'])} ago",
    }
    for name in ("last_return", "best_return", "evaluated_return"):
        if health[name] is not None:
            shown[name.replace("_", " ")] = f"{health[name]:,.2f}"
    shown["newest good checkpoint"] = "none" if health["newest_good"] is None else f"update {health['newest_good']:,}"
    for one in health["checkpoints"]:
        verified = (
            "every file is what its manifest says" if one["health"] == WHOLE else f"{one['health']}: {one['why']}"
        )
        shown[f"checkpoint {one['update']}"] = verified
    if health["quarantine"]:
        shown["quarantine"] = ", ".join(health["quarantine"])
    if health["problem"]:
        shown["problem"] = health["problem"]
    return shown
