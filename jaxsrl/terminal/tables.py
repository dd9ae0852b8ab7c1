"""Tables of results for the terminal, and JSON for programs."""

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxsrl.terminal.format import format_number

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_MIN_WIDTH = 160
_LISTED = 8  # longer lists are shown as a number of values and their range
_UNITS = {
    "_ms": " (ms)",
    "_milliseconds": " (ms)",
    "_us_per_env_step": " (microseconds per env step)",
    "_bytes": " (bytes)",
}
_WORDS = {"env_id": "environment", "num_envs": "environments"}


def print_tables(result: Mapping[str, Any], as_json: bool, title: str) -> None:
    """Prints a result: one JSON object, or a table of its values and one table for each list of rows.

    Args:
        result: JSON data. A list of objects is a list of rows.
        as_json: whether to print JSON.
        title: heading of the table of values.
    """
    if as_json:
        print(json.dumps(result))  # noqa: T201
        return
    from rich.text import Text

    console = make_console(_MIN_WIDTH)
    rows_by_name = {name: value for name, value in result.items() if _is_rows(value)}
    values = {name: value for name, value in result.items() if name not in rows_by_name}
    console.print(Text(title, style="bold"))
    if values:
        console.print(_values_table(values))
    for name, rows in rows_by_name.items():
        if values or len(rows_by_name) > 1:
            console.print(Text(describe_name(name), style="bold"))
        console.print(_rows_table(rows))


def make_console(min_width: int) -> "Console":
    """Returns the terminal or pipe with lines of at least `min_width` characters, since truncated columns are unreadable."""
    from rich.console import Console

    console = Console(file=sys.stdout)
    console.width = max(console.width, min_width)
    return console


def make_table(columns: Iterable[str], right: Collection[str] = (), title: str | None = None) -> "Table":
    """Returns an empty table; the columns in `right` are aligned to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for column in columns:
        table.add_column(Text(column), justify="right" if column in right else "left")
    return table


def describe_name(name: str) -> str:
    """Returns the name of a value as text, with its unit.

    Examples:
        >>> describe_name("inference_latency_ms"), describe_name("env_steps_per_second")
        ('inference latency (ms)', 'env steps per second')
    """
    suffix = next((suffix for suffix in _UNITS if name.endswith(suffix)), "")
    text = _WORDS.get(name, name.removesuffix(suffix).removeprefix("num_"))
    return text.replace("_", " ") + _UNITS.get(suffix, "")


def format_value(value: Any) -> str:
    """Returns a JSON value as text without Python or JSON syntax; an object has one line per value."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "\n".join(f"{describe_name(str(name))}: {format_value(one)}" for name, one in value.items()) or "-"
    if isinstance(value, list | tuple):
        return _format_list(value)
    if isinstance(value, float):
        return format_number(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)


def _format_list(values: Sequence[Any]) -> str:
    if len(values) > _LISTED and all(isinstance(value, int | float) for value in values):
        return f"{len(values)} values, {format_value(min(values))} to {format_value(max(values))}"
    return ", ".join(format_value(value) for value in values) or "-"


def _values_table(values: Mapping[str, Any]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False)
    for name, value in values.items():
        table.add_row(Text(describe_name(name)), Text(format_value(value)))
    return table


def _rows_table(rows: Sequence[Mapping[str, Any]]) -> "Table":
    from rich.text import Text

    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = make_table(map(describe_name, columns))
    for row in rows:
        table.add_row(*(Text(format_value(row.get(column))) for column in columns))
    return table
