"""Tables of an inspection on the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from jaxsrl.config.files import flatten_options
from jaxsrl.runs.checkpoint_health import WHOLE
from jaxsrl.runs.inspect import ArrayRow, Inspection
from jaxsrl.terminal.format import format_age, format_bytes, format_number
from jaxsrl.terminal.tables import make_console

_MIN_WIDTH = 110


def print_inspection(inspection: Inspection, show_all: bool) -> None:
    """Prints parameters, configuration, environment, versions and health; other arrays too if `show_all`."""
    console = make_console(_MIN_WIDTH)
    console.print(
        f"{inspection.agent or 'unknown agent'}, {inspection.checkpoint or 'no whole checkpoint'}",
        highlight=False,
        markup=False,
    )
    if inspection.parameters:
        console.print(_arrays("parameters", inspection.parameters))
    if show_all and inspection.others:
        console.print(_arrays("other arrays", inspection.others))
    elif inspection.others:
        held = format_bytes(sum(row.bytes for row in inspection.others))
        console.print(f"and {len(inspection.others)} other arrays ({held}): --all shows them\n", highlight=False)
    for title, values in (
        ("configuration", flatten_options(inspection.experiment)),
        ("environment", flatten_options(inspection.spec)),
        ("written by", inspection.versions),
    ):
        if values:
            console.print(_values(title, values))
    if inspection.health:
        console.print(_values("health", _health(inspection.health)))
    if inspection.machine:
        console.print(_values("machine at the last record", _machine(inspection.machine)))


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


def _values(title: str, values: Mapping[str, Any]) -> Table:
    table = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 2))
    for name, value in values.items():
        table.add_row(name, Text(str(value)))
    table.add_row("")
    return table


def _machine(values: dict[str, float]) -> dict[str, str]:
    """Returns one text for each process group, GPU and device, and for the machine."""
    rows: dict[str, list[str]] = {}
    for name, value in values.items():
        where, _, quantity = name.rpartition("/")
        label = quantity.removesuffix("_bytes").replace("_", " ")
        if quantity.endswith("_bytes"):
            text = f"{label} {format_bytes(int(value))}"
        elif quantity.endswith("busy"):
            text = f"{label} {value:.0%}"
        else:
            text = f"{label} {value:.3g}"
        rows.setdefault(where.removeprefix("process/"), []).append(text)
    return {where: ", ".join(texts) for where, texts in rows.items()}


def _health(health: dict[str, Any]) -> dict[str, str]:
    total = health["num_updates"]
    rows = {
        "state": health["state"],
        "updates": f"{health['update']:,} of {total:,}" if total else f"{health['update']:,}",
        "env steps": f"{health['env_steps']:,}",
        "last record": f"{format_age(health['seconds_since_last_record'])} ago",
    }
    if health["training_return"] is not None:
        rows["training return"] = format_number(health["training_return"])
    if health["evaluation_return"] is not None:
        update = "unknown" if health["evaluation_update"] is None else health["evaluation_update"]
        rows["evaluation return"] = f"{format_number(health['evaluation_return'])} (update {update})"
    if (best := health["best_evaluation"]) is not None:
        place = f"update {best['update']:,}, {best['env_steps']:,} env steps, {best['mode']}"
        rows["best evaluation"] = f"{format_number(best['mean_return'])} of {health['num_evaluations']} ({place})"
    rows["newest good checkpoint"] = "none" if health["newest_good"] is None else f"update {health['newest_good']:,}"
    for checkpoint in health["checkpoints"]:
        verified = (
            "every file matches its manifest"
            if checkpoint["health"] == WHOLE
            else f"{checkpoint['health']}: {checkpoint['why']}"
        )
        rows[f"checkpoint {checkpoint['update']}"] = verified
    if health["quarantine"]:
        rows["quarantine"] = ", ".join(health["quarantine"])
    if health["problem"]:
        rows["problem"] = health["problem"]
    return rows
