"""One metric of one run over steps, frames or time."""

import dataclasses
import difflib
from pathlib import Path
from typing import Any, Literal

import numpy as np

from envpool_bridge.errors import UserError
from jaxsrl.run_directory import CONFIG, read_json
from jaxsrl.runs.records import ELAPSED, RecordFile
from jaxsrl.runs.summary import RECORDS, find_runs

XAxis = Literal["steps", "time", "frames"]
COLUMNS: dict[XAxis, str] = {"steps": "env_steps", "time": ELAPSED, "frames": "frames"}


@dataclasses.dataclass(frozen=True, eq=False)
class RunCurve:
    """A run's values of one metric.

    Attributes:
        path: of the run's directory.
        config: what config.json says: "agent_name", "experiment", "env_spec".
        x: [N] float64, increasing: env steps, emulator frames, or seconds that were trained. What a resumed run did again is
            in it once.
        y: [N] float64, finite.
    """

    path: Path
    config: dict[str, Any]
    x: np.ndarray
    y: np.ndarray

    @property
    def env_id(self) -> str:
        """Of the environment it was trained in."""
        spec, experiment = self.config.get("env_spec") or {}, self.config.get("experiment") or {}
        return str(spec.get("env_id") or (experiment.get("env") or {}).get("id") or "unknown environment")


def read_curves(paths: list[Path], x: XAxis, metric: str) -> tuple[list[RunCurve], list[str]]:
    """The curves of all runs that are, or are in, these directories; and what was left out, a line each.

    Args:
        paths: runs, and directories of runs.
        x: what the curves are over.
        metric: a name of docs/reference/metrics.md.

    Raises:
        UserError: a path is no run and has none in it, or no run has the metric.
    """
    curves: dict[Path, RunCurve] = {}
    left_out: list[str] = []
    names: set[str] = set()
    for path in paths:
        runs = find_runs(path)
        if not runs:
            raise UserError(
                f"there is no run in {path}: expected a run directory (with {CONFIG} in it), or one of runs"
            )
        for run in runs:
            records = RecordFile(run / RECORDS)
            records.refresh()
            names |= set(records.columns) if records.num_rows else set()
            curve = _curve(run, records, x, metric)
            if curve is None:
                left_out.append(f"{run} is left out: it has no {metric if records.num_rows else 'records yet'}")
            else:
                curves[run.resolve()] = curve
    if not names:
        raise UserError(f"nothing to plot: {left_out[0].replace(' is left out: it', '')} ({RECORDS}); train it first")
    if not curves:
        raise UserError(f"no run here has a metric {metric!r}: {_advice(metric, names)}")
    return list(curves.values()), left_out


def _curve(run: Path, records: RecordFile, x: XAxis, metric: str) -> RunCurve | None:
    if metric not in records.columns or COLUMNS[x] not in records.columns:
        return None
    places, values = np.array(records.columns[COLUMNS[x]]), np.array(records.columns[metric])
    known = np.isfinite(places) & np.isfinite(values)
    if not known.any():
        return None
    config = read_json(run / CONFIG)
    if not isinstance(config, dict):
        raise UserError(f"{run / CONFIG} is no JSON object: expected what a run writes when it begins")
    return RunCurve(run, config, places[known], values[known])


def _advice(metric: str, names: set[str]) -> str:
    close = (
        difflib.get_close_matches(metric, sorted(names), n=3) or [name for name in sorted(names) if metric in name][:5]
    )
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"they record {', '.join(sorted(names))}"
