"""Groups of runs that are repetitions: their configurations differ only in the seed."""

import dataclasses
import difflib
import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.config.files import flatten_options
from jaxsrl.config.run_config import OPERATION
from jaxsrl.plots.run_curve import RunCurve

_BUDGET = {"run.total_env_steps", "run.gradient_steps"}
# Fields in which repetitions differ, and fields without an effect on learning.
IGNORED = (OPERATION - _BUDGET) | {"run.seed", "run.name"}
AGENT, _ENV = "agent_name", "env."
_SHORT = {"agent": AGENT, "plan": "run.plan", "seed": "run.seed"}
_MOST_FIELDS = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Runs that are repetitions.

    Attributes:
        env_id: environment of all runs.
        label: label that is unique among the methods of the figure.
        curves: curves of the runs.
    """

    env_id: str
    label: str
    curves: tuple[RunCurve, ...]


def group_curves(curves: Sequence[RunCurve], by: Sequence[str] = ()) -> list[Group]:
    """Groups curves and labels the groups; groups of one method in several environments share a label.

    Args:
        curves: curves of any runs.
        by: fields of the configuration. Runs that agree in these and in their environment form a group. "agent", "plan" and
            "seed" are short for `agent_name`, `run.plan` and `run.seed`; "run" makes each run a group. Without fields, runs of
            a group differ only in the seed.

    Raises:
        UserError: If no run has such a field.
    """
    fields = [_SHORT.get(name, name) for name in by]
    flat = [flatten_config(curve) for curve in curves]
    _check_fields(fields, flat)
    everywhere = _same_in_each_environment(curves, flat) - set(fields)
    flat = [{name: value for name, value in config.items() if name not in everywhere} for config in flat]
    by_method: dict[str, list[int]] = defaultdict(list)
    for number, config in enumerate(flat):
        by_method[_key(config, fields, curves[number])].append(number)
    methods = list(by_method.values())
    labels = _labels([flat[numbers[0]] for numbers in methods], fields)
    if "run" in fields or len(set(labels)) < len(labels):
        labels = [curves[numbers[0]].path.resolve().name for numbers in methods]
    if len(set(labels)) < len(labels):
        labels = [str(curves[numbers[0]].path) for numbers in methods]
    groups: list[Group] = []
    for label, numbers in zip(labels, methods, strict=True):
        by_env: dict[str, list[RunCurve]] = defaultdict(list)
        for number in numbers:
            by_env[curves[number].env_id].append(curves[number])
        groups += [Group(env_id, label, tuple(env_curves)) for env_id, env_curves in by_env.items()]
    return groups


def count_seeds_once(group: Group) -> tuple[Group, list[str]]:
    """Returns the group with the longest run of each seed, and a line for each run that is skipped. Runs without a seed stay."""
    kept: dict[Any, RunCurve] = {}
    skipped: list[RunCurve] = []
    for curve in sorted(group.curves, key=lambda curve: -curve.x[-1]):
        seed = flatten_config(curve).get("run.seed", curve.path)
        if seed in kept:
            skipped.append(curve)
        kept.setdefault(seed, curve)
    lines = [f"{curve.path} is skipped in {group.label}: a longer run has the same seed" for curve in skipped]
    return dataclasses.replace(group, curves=tuple(each for each in group.curves if each not in skipped)), lines


def flatten_config(curve: RunCurve) -> dict[str, Any]:
    """Returns the configuration as one value per field, named by its path ("agent.learning_rate"), and `agent_name`."""
    experiment = curve.config.get("experiment")
    fields = experiment if isinstance(experiment, dict) else {"": experiment}
    return {AGENT: curve.config.get(AGENT), **flatten_options(fields)}


def _key(config: dict[str, Any], fields: list[str], curve: RunCurve) -> str:
    if "run" in fields:
        return str(curve.path.resolve())
    kept = {name: config.get(name) for name in fields} if fields else _relevant(config)
    return json.dumps(kept, sort_keys=True, default=str)


def _relevant(config: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in config.items() if name not in IGNORED and not name.startswith("run.metrics.")
    }


def _same_in_each_environment(curves: Sequence[RunCurve], flat: list[dict[str, Any]]) -> set[str]:
    """Returns the environment fields on which all runs in the same environment agree.

    A method keeps its label across environments despite such fields. With and without stacked frames in one environment are
    different methods.
    """
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for curve, config in zip(curves, flat, strict=True):
        for name, value in config.items():
            if name.startswith(_ENV):
                values[name, curve.env_id].add(json.dumps(value, sort_keys=True, default=str))
    names = {name for name, _ in values}
    return {name for name in names if all(len(distinct) == 1 for (one, _), distinct in values.items() if one == name)}


def _check_fields(fields: list[str], flat: list[dict[str, Any]]) -> None:
    known = {name for config in flat for name in config} | {"run"}
    for name in fields:
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known), n=3) or sorted(known)[:8]
            raise UserError(f"--group-by {name}: no run here has such a field; did you mean {' or '.join(close)}?")


def _labels(configs: list[dict[str, Any]], fields: list[str]) -> list[str]:
    """Returns labels with the fields in which methods of one agent differ, after the agent's name."""
    labels: list[str] = []
    for config in configs:
        rivals = [other for other in configs if other[AGENT] == config[AGENT]]
        names = [name for name in (fields or _relevant(config)) if name != AGENT]
        names = [name for name in names if any(other.get(name) != config.get(name) for other in rivals)]
        parts = [
            f"{name.rpartition('.')[2]} {_value(config.get(name))}" for name in sorted(names, key=_rank)[:_MOST_FIELDS]
        ]
        agent = [] if fields and AGENT not in fields and parts else [str(config[AGENT] or "run")]
        labels.append(", ".join([*agent, *parts]) + (", ..." if len(names) > _MOST_FIELDS else ""))
    return labels


def _rank(name: str) -> tuple[bool, bool, str]:
    """Returns a sort key: the plan first, then the agent's fields."""
    return name != "run.plan", not name.startswith("agent."), name


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 24 else f"{text[:23]}…"
