"""Report of `jaxsrl doctor`, as a table or as JSON."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxsrl.machine.doctor.checks import Check, run_checks
from jaxsrl.machine.doctor.leftovers import Leftover, find_leftovers


@dataclasses.dataclass(frozen=True)
class Report:
    """Results of the doctor."""

    checks: Sequence[Check]
    leftovers: Sequence[Leftover]

    @property
    def is_well(self) -> bool:
        """True if every check passed and no leftover remains."""
        return all(check.is_well for check in self.checks) and all(left.removed for left in self.leftovers)

    def to_json(self) -> dict[str, Any]:
        """Returns JSON data."""
        return {"is_well": self.is_well, **dataclasses.asdict(self)}


def examine(runs: Path, clean: bool = False) -> Report:
    """Checks the machine and finds leftovers of crashed runs; removes them if `clean`."""
    return Report(run_checks(), find_leftovers(runs, clean))


def print_report(report: Report) -> None:
    """Prints the report as a table."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout)
    table = Table(show_header=False, box=None)
    for check in report.checks:
        mark = "[green]ok[/green]" if check.is_well else "[red]no[/red]"
        table.add_row(mark, check.name, check.finding + (f"\n[bold]{check.advice}[/bold]" if check.advice else ""))
    console.print(table)
    for left in report.leftovers:
        done = "removed" if left.removed else "left by a crashed run: its user removes it with `jaxsrl doctor --clean`"
        console.print(f"{left.kind} {left.what}: {done}", highlight=False)
    if not report.leftovers:
        console.print("no leftovers of crashed runs")
