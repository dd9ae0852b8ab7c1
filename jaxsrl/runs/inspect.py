"""Contents and health of a run or a checkpoint. Read-only."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.manifest import MANIFEST, read_manifest, verify_files
from jaxsrl.checkpoints.names import LEARNER
from jaxsrl.checkpoints.run_directory import CONFIG, read_json
from jaxsrl.checkpoints.schema import validate_manifest
from jaxsrl.checkpoints.store import load_checkpoint
from jaxsrl.metrics.evaluations import read_evaluations
from jaxsrl.metrics.record_file import RecordFile
from jaxsrl.runs.checkpoint_health import WHOLE, checkpoint_health, list_quarantine
from jaxsrl.runs.read_checkpoint import resolve_model
from jaxsrl.runs.summary import RECORDS, as_dict, checkpoint_steps, is_run, summarize

_PARAMETERS = f"{LEARNER}.params"
_OF_MACHINE = ("process/", "machine/", "gpu/", "device/")
_PARTS = re.compile(r"\['([^']*)'\]|\[(\d+)\]|\.?(\w+)")


@dataclasses.dataclass(frozen=True)
class ArrayRow:
    """One array of a checkpoint.

    Attributes:
        path: name with parts separated by "/".
        shape: shape of the array.
        dtype: name of the dtype.
        count: number of elements.
        bytes: size in memory.
        norm: root of the sum of squares; None for arrays without floating-point numbers.
        not_finite: number of NaN or infinite elements.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    count: int
    bytes: int
    norm: float | None
    not_finite: int


@dataclasses.dataclass(frozen=True)
class Inspection:
    """Contents and health of a run or a checkpoint.

    Attributes:
        path: path that was inspected.
        checkpoint: directory of the shown checkpoint; None for a run without an intact one.
        update: update of the checkpoint.
        agent: name of the algorithm.
        parameters: arrays of the agent's parameters.
        others: other arrays of the checkpoint: optimizer, episodes, experience.
        experiment: configuration.
        spec: spec of the environment.
        versions: versions of the packages that wrote the checkpoint.
        health: health of the run, its checkpoints and its records.
        machine: what the processes, the machine and its GPUs used at the newest record, by metric name.
    """

    path: str
    checkpoint: str | None
    update: int | None
    agent: str
    parameters: tuple[ArrayRow, ...]
    others: tuple[ArrayRow, ...]
    experiment: dict[str, Any]
    spec: dict[str, Any]
    versions: dict[str, str]
    health: dict[str, Any]
    machine: dict[str, float] = dataclasses.field(default_factory=dict[str, float])

    def to_json(self) -> dict[str, Any]:
        """Returns JSON data, with totals."""
        return {
            **dataclasses.asdict(self),
            "num_parameters": sum(row.count for row in self.parameters),
            "parameter_bytes": sum(row.bytes for row in self.parameters),
            "checkpoint_bytes": sum(row.bytes for row in (*self.parameters, *self.others)),
        }


def inspect(path: Path) -> Inspection:
    """Inspects a run directory with its newest intact checkpoint, one checkpoint directory, or a model of a run, "RUN@best".

    Raises:
        UserError: If the path is none of them, or is a checkpoint of another version.
        CorruptCheckpointError: If the given checkpoint is damaged.
    """
    path = resolve_model(path)
    if (path / MANIFEST).is_file():
        above = path.resolve().parent.parent
        return _inspection(path, path, above if is_run(above) else None)
    if not is_run(path) and not checkpoint_steps(path):
        problem = "is neither" if path.exists() else "does not exist"
        raise UserError(
            f"{path} {problem}: expected a run directory ({CONFIG} in it), or a checkpoint ({MANIFEST} in it)"
        )
    return _inspection(path, None, path)


def _inspection(path: Path, checkpoint: Path | None, run: Path | None) -> Inspection:
    """Inspects a checkpoint, or the newest good one of a run."""
    health = {} if run is None else _health(run)
    if checkpoint is None and run is not None and health["newest_good"] is not None:
        checkpoint = run / "checkpoints" / str(health["newest_good"])
    arrays, metadata = ({}, _json(path / CONFIG)) if checkpoint is None else load_checkpoint(checkpoint)
    manifest = {} if checkpoint is None else read_manifest(checkpoint)
    rows = {name: _row(name, array) for name, array in arrays.items()}
    return Inspection(
        path=str(path),
        checkpoint=None if checkpoint is None else str(checkpoint),
        update=manifest.get("step"),
        agent=str(metadata.get("agent_name") or ""),
        parameters=tuple(row for name, row in rows.items() if name.startswith(_PARAMETERS)),
        others=tuple(row for name, row in rows.items() if not name.startswith(_PARAMETERS)),
        experiment=as_dict(metadata.get("experiment")),
        spec=as_dict(metadata.get("env_spec")),
        versions=as_dict(manifest.get("versions")),
        health=health,
        machine={} if run is None else _machine(run),
    )


def _row(name: str, array: np.ndarray) -> ArrayRow:
    norm, not_finite = None, 0
    if jnp.issubdtype(array.dtype, jnp.floating):
        values = array.astype(np.float64)
        not_finite = int((~np.isfinite(values)).sum())
        norm = float(np.linalg.norm(values)) if not not_finite else None
    return ArrayRow(short_path(name), array.shape, array.dtype.name, array.size, array.nbytes, norm, not_finite)


def short_path(name: str) -> str:
    """Returns an array's name with "/" between its parts: `learner.params['torso'][0].weight` -> `params/torso/0/weight`."""
    return "/".join("".join(part) for part in _PARTS.findall(name.removeprefix(f"{LEARNER}.")))


def _health(run: Path) -> dict[str, Any]:
    """Returns the summary of a run and every checkpoint, verified to the last byte, newest first."""
    summary = summarize(run)
    checkpoints = [_verify(run / "checkpoints" / str(step)) for step in reversed(checkpoint_steps(run))]
    good = next((one["update"] for one in checkpoints if one["health"] == WHOLE), None)
    evaluation, evaluations = _json(run / "eval.json"), read_evaluations(run)
    best = max(evaluations, key=lambda each: (each.mode == evaluations[0].mode, each.rank), default=None)
    return {
        "state": summary.state,
        "update": summary.update,
        "num_updates": summary.num_updates,
        "env_steps": summary.env_steps,
        "training_return": summary.training_return,
        "seconds_since_last_record": summary.age_seconds,
        "problem": summary.problem,
        "newest_good": good,
        "checkpoints": checkpoints,
        "quarantine": list_quarantine(run),
        "evaluation_return": evaluation.get("mean_return"),
        "evaluation_update": evaluation.get("update"),
        "num_evaluations": len(evaluations),
        "best_evaluation": None if best is None else dataclasses.asdict(best),
    }


def _machine(run: Path) -> dict[str, float]:
    """Returns the newest values of processes, the machine and its GPUs; {} without a readable record."""
    records = RecordFile(run / RECORDS)
    try:
        records.refresh()
    except UserError:  # which `RunSummary.problem` reports
        return {}
    names = (name for name in records.columns if name.startswith(_OF_MACHINE))
    return {name: value for name in sorted(names) if (value := records.last(name)) is not None}


def _verify(path: Path) -> dict[str, Any]:
    def verify(manifest: dict[str, Any]) -> None:
        validate_manifest(path, manifest)
        verify_files(path, manifest)

    health, why = checkpoint_health(path, verify)
    return {"update": int(path.name), "health": health, "why": why}


def _json(path: Path) -> dict[str, Any]:
    """Returns the object of a JSON file; {} if it is missing or invalid, which `RunSummary.problem` reports."""
    try:
        return as_dict(read_json(path))
    except UserError:
        return {}
