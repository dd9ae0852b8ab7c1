"""Tables of a comparison for the terminal."""

from rich.table import Table
from rich.text import Text

from jaxsrl.plots.aggregate import Estimate
from jaxsrl.plots.axis_labels import x_label
from jaxsrl.plots.compare_runs import Comparison
from jaxsrl.terminal.format import format_number
from jaxsrl.terminal.tables import make_console, make_table

_MIN_WIDTH = 120


def print_comparison(comparison: Comparison) -> None:
    """Prints groups with their last mean, then aggregates over environments if there are several."""
    console = make_console(_MIN_WIDTH)
    console.print(_groups(comparison))
    if comparison.methods:
        console.print(_aggregates(comparison))
        console.print(_improvements(comparison))


def _groups(comparison: Comparison) -> Table:
    numbers = ("runs", "up to", "mean", "interval")
    table = make_table(("env", "group", *numbers), numbers, f"{comparison.metric}, mean and 95 % bootstrap interval")
    for one in comparison.drawn:
        names = Text(one.group.env_id), Text(one.group.label), str(len(one.group.curves))
        if not len(one.mean.x):
            table.add_row(*names, "-", "-", "-")
            continue
        label, unit = x_label(comparison.x, float(one.mean.x[-1]), one.group.curves)
        low, high = one.mean.low[-1], one.mean.high[-1]
        interval = f"{format_number(low)} to {format_number(high)}" if len(one.group.curves) > 1 else "-"
        digits = 1 if comparison.x == "time" else 0
        table.add_row(
            *names, f"{one.mean.x[-1] / unit:,.{digits}f} {label}", format_number(one.mean.mean[-1]), interval
        )
    return table


def _aggregates(comparison: Comparison) -> Table:
    statistics = tuple(comparison.estimates)
    table = make_table(("group", *statistics), statistics, "normalized scores over all environments")
    for label in comparison.methods:
        table.add_row(Text(label), *(_format_estimate(by_label[label]) for by_label in comparison.estimates.values()))
    return table


def _improvements(comparison: Comparison) -> Table:
    title = "probability that a run of one is better than a run of the other"
    table = make_table(("group", "over", "probability"), ("probability",), title)
    for (one, other), estimate in comparison.improvement.items():
        table.add_row(Text(one), Text(other), _format_estimate(estimate))
    return table


def _format_estimate(estimate: Estimate) -> str:
    value, low, high = map(format_number, (estimate.value, estimate.low, estimate.high))
    return f"{value} ({low} to {high})"
