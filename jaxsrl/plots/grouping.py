"""Which runs are repetitions of one another: those whose configurations differ in nothing but the seed."""

import dataclasses
import difflib
import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.config.run_config import OPERATION
from jaxsrl.plots.run_curve import RunCurve

# What tells repetitions apart, and what changes nothing that is learned.
IGNORED = (OPERATION - {"run.env_steps"}) | {"run.seed", "run.name"}
AGENT, _ENV = "agent_name", "env."
_SHORT = {"agent": AGENT, "policy": "run.policy", "seed": "run.seed"}
_MOST_FIELDS = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Runs that are repetitions.

    Attributes:
        env_id: of all of them.
        label: that tells the group from the others of the picture.
        curves: of its runs.
    """

    env_id: str
    label: str
    curves: tuple[RunCurve, ...]


def group_curves(curves: Sequence[RunCurve], by: Sequence[str] = ()) -> list[Group]:
    """Groups with labels, those of one method (in several environments) with the same label.

    Args:
        curves: of any runs.
        by: fields of the configuration; runs that agree in them, and in their environment, are one group whatever else differs.
            "agent", "policy" and "seed" are short for `agent_name`, `run.policy` and `run.seed`; "run" puts each run by itself.
            Without any, runs are one group that differ only in the seed.

    Raises:
        UserError: no run has such a field.
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
        of_env: dict[str, list[RunCurve]] = defaultdict(list)
        for number in numbers:
            of_env[curves[number].env_id].append(curves[number])
        groups += [Group(env_id, label, tuple(found)) for env_id, found in of_env.items()]
    return groups


def flatten_config(curve: RunCurve) -> dict[str, Any]:
    """The configuration as one value for each field, named by its path ("agent.learning_rate"), and `agent_name`."""
    found: dict[str, Any] = {AGENT: curve.config.get(AGENT)}
    _flatten(curve.config.get("experiment"), "", found)
    return found


def _flatten(value: Any, path: str, into: dict[str, Any]) -> None:
    if isinstance(value, dict) and value:
        for name, item in value.items():
            _flatten(item, f"{path}.{name}" if path else str(name), into)
    else:
        into[path] = value


def _key(config: dict[str, Any], fields: list[str], curve: RunCurve) -> str:
    if "run" in fields:
        return str(curve.path.resolve())
    kept = {name: config.get(name) for name in fields} if fields else _that_matter(config)
    return json.dumps(kept, sort_keys=True, default=str)


def _that_matter(config: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in config.items() if name not in IGNORED and not name.startswith("run.metrics.")
    }


def _same_in_each_environment(curves: Sequence[RunCurve], flat: list[dict[str, Any]]) -> set[str]:
    """Fields of the environment that no two runs in one environment disagree about.

    The same method in another environment, with what that needs, is the same method; one environment with stacked frames and
    without is not.
    """
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for curve, config in zip(curves, flat, strict=True):
        for name, value in config.items():
            if name.startswith(_ENV):
                values[name, curve.env_id].add(json.dumps(value, sort_keys=True, default=str))
    names = {name for name, _ in values}
    return {name for name in names if all(len(found) == 1 for (one, _), found in values.items() if one == name)}


def _check_fields(fields: list[str], flat: list[dict[str, Any]]) -> None:
    known = {name for config in flat for name in config} | {"run"}
    for name in fields:
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known), n=3) or sorted(known)[:8]
            raise UserError(f"--group-by {name}: no run here has such a field; did you mean {' or '.join(close)}?")


def _labels(configs: list[dict[str, Any]], fields: list[str]) -> list[str]:
    """What each differs in from the others of its agent; the agent's name comes first where there is more to tell."""
    labels: list[str] = []
    for config in configs:
        rivals = [other for other in configs if other[AGENT] == config[AGENT]]
        names = [name for name in (fields or _that_matter(config)) if name != AGENT]
        names = [name for name in names if any(other.get(name) != config.get(name) for other in rivals)]
        parts = [
            f"{name.rpartition('.')[2]} {_value(config.get(name))}" for name in sorted(names, key=_rank)[:_MOST_FIELDS]
        ]
        agent = [] if fields and AGENT not in fields and parts else [str(config[AGENT] or "run")]
        labels.append(", ".join([*agent, *parts]) + (", ..." if len(names) > _MOST_FIELDS else ""))
    return labels


def _rank(name: str) -> tuple[bool, bool, str]:
    """The policy first, then the agent's fields."""
    return name != "run.policy", not name.startswith("agent."), name


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 24 else f"{text[:23]}…"
