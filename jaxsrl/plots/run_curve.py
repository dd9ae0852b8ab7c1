"""Curve of one metric of one run over steps, frames or time."""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.run_directory import CONFIG, read_json
from jaxsrl.metrics.evaluations import evaluation_columns, read_evaluations
from jaxsrl.metrics.record_file import ELAPSED, RecordFile
from jaxsrl.runs.summary import RECORDS, as_dict, find_runs

Columns = Mapping[str, Sequence[float] | np.ndarray]
XAxis = Literal["steps", "time", "frames"]
COLUMNS: dict[XAxis, str] = {"steps": "env_steps", "time": ELAPSED, "frames": "frames"}


@dataclasses.dataclass(frozen=True, eq=False)
class RunCurve:
    """Values of one metric of a run.

    Attributes:
        path: directory of the run.
        config: contents of config.json: "agent_name", "experiment", "env_spec".
        x: [N] float64, increasing: steps (see `step_unit`), emulator frames, or seconds of training. Work that a resumed run
            repeated is counted once.
        y: [N] float64, finite.
    """

    path: Path
    config: dict[str, Any]
    x: np.ndarray
    y: np.ndarray

    @property
    def env_id(self) -> str:
        """Id of the training environment."""
        spec, experiment = self.config.get("env_spec") or {}, self.config.get("experiment") or {}
        return str(spec.get("env_id") or (experiment.get("env") or {}).get("id") or "unknown environment")

    @property
    def step_unit(self) -> str:
        """Unit of the run's steps, as in `RunConfig.step_unit`."""
        run = (self.config.get("experiment") or {}).get("run") or {}
        return "gradient steps" if run.get("plan") == "offline" else "env steps"


def read_curves(paths: list[Path], x: XAxis, metric: str) -> tuple[list[RunCurve], list[str]]:
    """Reads the curves of all runs at or below these directories.

    Returns:
        Curves, and one line for each run that was skipped.

    Raises:
        UserError: If a path contains no run, or no run has the metric.
    """
    curves: dict[Path, RunCurve] = {}
    skipped: list[str] = []
    unreadable: list[str] = []
    names: set[str] = set()
    for path in paths:
        runs = find_runs(path)
        if not runs:
            raise UserError(
                f"there is no run in {path}: expected a run directory (with {CONFIG} in it), or one of runs"
            )
        for run in runs:
            records = RecordFile(run / RECORDS)
            try:
                records.refresh()
                columns: Columns = evaluation_columns(read_evaluations(run), records)
                names |= {*columns, *records.columns} if records.num_rows else set()
                curve = _curve(run, columns if metric in columns else records.columns, x, metric)
            except UserError as error:
                skipped.append(f"{run} is skipped: {error}")
                unreadable.append(str(error))
                continue
            if curve is None:
                skipped.append(f"{run} is skipped: it has no {metric if records.num_rows else 'records yet'}")
            else:
                curves[run.resolve()] = curve
    if not curves and unreadable:
        raise UserError(unreadable[0])
    if not names:
        raise UserError(f"nothing to plot: {skipped[0].replace(' is skipped: it', '')} ({RECORDS}); train it first")
    if not curves:
        raise UserError(f"no run here has a metric {metric!r}: {_advice(metric, names)}")
    return list(curves.values()), skipped


def _curve(run: Path, columns: Columns, x: XAxis, metric: str) -> RunCurve | None:
    if metric not in columns or COLUMNS[x] not in columns:
        return None
    places, values = np.array(columns[COLUMNS[x]]), np.array(columns[metric])
    known = np.isfinite(places) & np.isfinite(values)
    if not known.any():
        return None
    config = read_json(run / CONFIG)
    objects = [config, *(as_dict(config).get(name, {}) for name in ("experiment", "env_spec"))]
    objects += [as_dict(objects[1]).get(name, {}) for name in ("env", "run")]
    if not all(each is None or isinstance(each, dict) for each in objects):
        raise UserError(
            f"{run / CONFIG} is no JSON object of the usual form: expected the file that a run writes at its start"
        )
    return RunCurve(run, config, places[known], values[known])


def _advice(metric: str, names: set[str]) -> str:
    close = (
        difflib.get_close_matches(metric, sorted(names), n=3) or [name for name in sorted(names) if metric in name][:5]
    )
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"they record {', '.join(sorted(names))}"
