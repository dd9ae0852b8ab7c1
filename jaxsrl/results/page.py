"""Page of all results: a table with published results next to ours, and curves with the commands that make them."""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from jaxsrl.plots.bootstrap import student_interval
from jaxsrl.results.record import Result, folder_name
from jaxsrl.results.task_list import Reference
from jaxsrl.terminal.format import format_number

PICTURES = Path("pictures", "results")
_INTRODUCTION = """# Results

`jaxsrl results` makes this page from the records in `results/`, one JSON file a run. Do not edit it.
`jaxsrl results run` trains what `results/tasks.toml` lists and has no record; `jaxsrl results add RUN` records a finished run.

"Evaluation return" is the mean over seeds of each run's mean return in greedy episodes with its final parameters.
Intervals, also those of curves, are 95 % Student t intervals of the mean over seeds. Curves show training returns;
intervals are cut at the edges of a picture.
Published results are of other versions, protocols or numbers of seeds, as their sources state.
"""
_COLUMNS = (
    "task",
    "algorithm",
    "settings",
    "seeds",
    "evaluation return",
    "95 % interval",
    "env steps",
    "minutes",
    "published",
)
_NUMBERS = ("seeds", "evaluation return", "env steps", "minutes")


def group_results(results: Sequence[Result]) -> list[list[Result]]:
    """Returns groups of results that differ only in the seed, in the order of `read_results`."""
    groups = itertools.groupby(results, lambda result: (result.task, result.algorithm, result.preset))
    return [list(group) for _, group in groups]


def format_page(results: Sequence[Result], references: Sequence[Reference]) -> str:
    """Returns the page as Markdown; equal arguments give equal text.

    Args:
        results: Results in the order of `read_results`.
        references: published results.
    """
    groups = group_results(results)
    if not groups:
        return f"{_INTRODUCTION}\nThere are no records yet.\n"
    parts = [_INTRODUCTION, _format_table(groups, references)]
    for task, own in itertools.groupby(groups, lambda group: group[0].task):
        parts.append(_format_task(task, list(own)))
    return "\n".join(parts)


def _format_table(groups: list[list[Result]], references: Sequence[Reference]) -> str:
    lines = [_row(_COLUMNS), _row("---:" if name in _NUMBERS else "---" for name in _COLUMNS)]
    for group in groups:
        first = group[0]
        returns = np.array([result.evaluation["mean_return"] for result in group])
        low, high = student_interval(returns)
        published = [
            f"{reference.value:,.1f} at {reference.env_steps:,} ([{reference.source}]({reference.url}))"
            for reference in references
            if (reference.task, reference.algorithm) == (first.task, first.algorithm)
        ]
        lines.append(
            _row(
                (
                    first.task,
                    first.algorithm,
                    first.preset,
                    str(len(group)),
                    format_number(float(returns.mean())),
                    f"{format_number(float(low))} to {format_number(float(high))}" if len(group) > 1 else "-",
                    _format_range([result.env_steps for result in group], ",d"),
                    _format_range([result.seconds / 60 for result in group], ",.1f"),
                    "; ".join(published) or "-",
                )
            )
        )
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _format_range(values: Sequence[float], form: str) -> str:
    """Returns the values' range, or the only value, for example "1.5 to 2.0"."""
    return " to ".join(dict.fromkeys(format(value, form) for value in (min(values), max(values))))


def _format_task(task: str, groups: list[list[Result]]) -> str:
    commands = [group[0].command for group in groups if group[0].command]
    lines = [f"## {task}", "", f"![Learning curves on {task}]({(PICTURES / folder_name(task)).as_posix()}.svg)", ""]
    if commands:
        lines += ["```", *commands, "```", ""]
    made = dict.fromkeys(_describe_origin(result) for group in groups for result in group)
    return "\n".join([*lines, *(f"Made with {origin}." for origin in made), ""])


def _describe_origin(result: Result) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    hardware = result.hardware
    machine = ", ".join(filter(None, (hardware["cpu"], f"{hardware['cores']} cores", hardware["gpu"])))
    commit = f" (commit {result.commit})" if result.commit else ""
    return f"{versions}{commit} on {machine}"
