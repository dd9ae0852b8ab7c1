"""Reports of rows, combined in the form that Gymnasium's vector environments return."""

from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import numpy as np

from envpool_bridge.envs.vector_requests import RowReport
from envpool_bridge.errors import WorkerError
from envpool_bridge.spec.tree import Tree, leaves, map_leaves, take

Report = dict[str, Any] | RowReport
AddInfo = Callable[[dict[str, Any], dict[str, Any], int], dict[str, Any]]


def info_of(report: Report) -> dict[str, Any]:
    """Returns the info of a row."""
    return report.info if isinstance(report, RowReport) else report


def stack_infos(add_info: AddInfo, reports: Sequence[Report]) -> dict[str, Any]:
    """Returns infos as arrays with one entry for each environment.

    Args:
        add_info: `VectorEnv._add_info`.
        reports: one for each row.
    """
    infos: dict[str, Any] = {}
    if not any(reports):
        return infos
    for row, report in enumerate(reports):
        if info := info_of(report):
            infos = add_info(infos, info, row)
    return infos


def select_infos(infos: dict[Any, Any], rows: slice | np.ndarray) -> dict[Any, Any]:
    """Returns the infos of some environments, from `stack_infos`. Keys may be of any kind, also without an order."""
    return {
        key: select_infos(values, rows) if isinstance(values, dict) else values[rows] for key, values in infos.items()
    }


def split(observations: Tree) -> list[Tree]:
    """Returns each of several observations, [N, ...] a leaf, with ints in place of numpy's integers."""
    if isinstance(observations, np.ndarray) and observations.ndim > 1:
        return list(observations)
    count = len(leaves(observations)[0])
    return [map_leaves(_as_int, take(observations, number)) for number in range(count)]


def _as_int(value: Any) -> Any:
    return int(value) if isinstance(value, np.integer) else value


def add_finals(infos: dict[str, Any], finals: Tree, ended: np.ndarray, num_envs: int) -> None:
    """Adds final observations to infos, in the form of `VectorEnv._add_info`.

    Args:
        infos: changed in place; holds the final infos that are not empty.
        finals: final observations of the rows whose episode ended, [N, ...] a leaf.
        ended: indices of these rows, [N] int64.
        num_envs: length of the arrays in `infos`.
    """
    mask = np.zeros(num_envs, np.bool_)
    mask[ended] = True
    each = np.empty(num_envs, dtype=object)  # of None
    for row, final in zip(ended.tolist(), split(finals), strict=True):
        each[row] = final
    infos.setdefault("final_info", {})
    infos["final_obs"], infos["_final_obs"], infos["_final_info"] = each, mask, mask.copy()


def raise_failure(reports: Sequence[Report]) -> None:
    """Raises the exception of the first environment that failed, from an error that describes all of them.

    An exception that this process cannot unpickle is described by that error alone.
    """
    if not any(reports):
        return
    failures = [report.failure for report in reports if isinstance(report, RowReport) and report.failure]
    if not failures:
        return
    cause = WorkerError("\n\n".join(failure.text for failure in failures))
    try:
        error = cloudpickle.loads(failures[0].error)
    except Exception:  # noqa: BLE001  its class may exist in the worker only
        raise cause from None
    raise error from cause
