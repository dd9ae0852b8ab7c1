"""What is in a run or a checkpoint, and whether it is whole; nothing is moved or written."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.manifest import MANIFEST, CorruptCheckpointError, read_manifest, verify_files
from jaxsrl.checkpoints.names import LEARNER
from jaxsrl.checkpoints.schema import validate_manifest
from jaxsrl.checkpoints.store import load_checkpoint
from jaxsrl.run_directory import CONFIG, read_json
from jaxsrl.runs.summary import checkpoint_steps, is_run, summarize

WHOLE, DAMAGED, OTHER_VERSION = "whole", "damaged", "other version"
_PARAMETERS = f"{LEARNER}.params"
_PARTS = re.compile(r"\['([^']*)'\]|\[(\d+)\]|\.?(\w+)")


@dataclasses.dataclass(frozen=True)
class ArrayRow:
    """One array of a checkpoint.

    Attributes:
        path: its name, parts separated by "/".
        shape: of it.
        dtype: name.
        count: of elements.
        bytes: that they take in memory.
        norm: root of the sum of squares; None of what is no floating-point number.
        not_finite: elements that are NaN or infinite.
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
    """What was found.

    Attributes:
        path: that was asked about.
        checkpoint: directory that is shown; None of a run that has no whole one.
        update: that it was made at.
        agent: name of the algorithm.
        parameters: the agent's.
        others: what else the checkpoint holds: optimizer, episodes, experience.
        experiment: configuration.
        spec: of the environment.
        versions: of what wrote the checkpoint.
        health: of the run, its checkpoints and its records.
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

    def to_json(self) -> dict[str, Any]:
        """As JSON data, with totals."""
        return {
            **dataclasses.asdict(self),
            "num_parameters": sum(row.count for row in self.parameters),
            "parameter_bytes": sum(row.bytes for row in self.parameters),
            "checkpoint_bytes": sum(row.bytes for row in (*self.parameters, *self.others)),
        }


def inspect(path: Path) -> Inspection:
    """Looks at a run directory, with the newest whole checkpoint in it if there is one, or at one checkpoint directory.

    Raises:
        UserError: the path is neither, or is a checkpoint of another version.
        CorruptCheckpointError: the one checkpoint asked for is damaged.
    """
    if (path / MANIFEST).is_file():
        above = path.resolve().parent.parent
        health = _health(above) if is_run(above) else {}
        return _inspection(path, path, health)
    if not is_run(path) and not checkpoint_steps(path):
        found = "is neither" if path.exists() else "is not there"
        raise UserError(
            f"{path} {found}: expected a run directory ({CONFIG} in it), or a checkpoint ({MANIFEST} in it)"
        )
    health = _health(path)
    good = health["newest_good"]
    return _inspection(path, None if good is None else path / "checkpoints" / str(good), health)


def _inspection(path: Path, checkpoint: Path | None, health: dict[str, Any]) -> Inspection:
    if checkpoint is None:
        config = _json(path / CONFIG)
        return Inspection(
            str(path),
            None,
            None,
            _agent(config),
            (),
            (),
            _part(config, "experiment"),
            _part(config, "env_spec"),
            {},
            health,
        )
    arrays, metadata = load_checkpoint(checkpoint)
    manifest = read_manifest(checkpoint)
    rows = {name: _row(name, array) for name, array in arrays.items()}
    return Inspection(
        str(path),
        str(checkpoint),
        manifest.get("step"),
        _agent(metadata),
        tuple(row for name, row in rows.items() if name.startswith(_PARAMETERS)),
        tuple(row for name, row in rows.items() if not name.startswith(_PARAMETERS)),
        _part(metadata, "experiment"),
        _part(metadata, "env_spec"),
        _part(manifest, "versions"),
        health,
    )


def _row(name: str, array: np.ndarray) -> ArrayRow:
    norm, not_finite = None, 0
    if jnp.issubdtype(array.dtype, jnp.floating):
        values = array.astype(np.float64)
        not_finite = int((~np.isfinite(values)).sum())
        norm = float(np.linalg.norm(values)) if not not_finite else None
    return ArrayRow(short_path(name), array.shape, array.dtype.name, array.size, array.nbytes, norm, not_finite)


def short_path(name: str) -> str:
    """An array's name with "/" between its parts: `learner.params['torso'][0].weight` -> `params/torso/0/weight`."""
    return "/".join("".join(part) for part in _PARTS.findall(name.removeprefix(f"{LEARNER}.")))


def _health(run: Path) -> dict[str, Any]:
    """Of a run: what it came to, and every checkpoint of it checked to the last byte, newest first."""
    summary = summarize(run)
    checkpoints = [_checked(run / "checkpoints" / str(step)) for step in reversed(checkpoint_steps(run))]
    good = next((one["update"] for one in checkpoints if one["health"] == WHOLE), None)
    try:
        quarantine = sorted(path.name for path in (run / "checkpoints" / "quarantine").iterdir())
    except OSError:
        quarantine = []
    evaluation = _json(run / "eval.json")
    return {
        "state": summary.state,
        "update": summary.update,
        "num_updates": summary.num_updates,
        "env_steps": summary.env_steps,
        "last_return": summary.last_return,
        "best_return": summary.best_return,
        "seconds_since_last_record": summary.age_seconds,
        "problem": summary.problem,
        "newest_good": good,
        "checkpoints": checkpoints,
        "quarantine": quarantine,
        "evaluated_return": evaluation.get("mean_return"),
    }


def _checked(path: Path) -> dict[str, Any]:
    found, why = WHOLE, ""
    try:
        manifest = read_manifest(path)
        validate_manifest(path, manifest)
        verify_files(path, manifest)
    except CorruptCheckpointError as error:
        found, why = DAMAGED, str(error)
    except OSError as error:
        found, why = DAMAGED, f"{path}: {error.strerror}"
    except UserError as error:
        is_there = (path / MANIFEST).is_file()
        found, why = (OTHER_VERSION, str(error)) if is_there else (DAMAGED, f"{path}: {MANIFEST} is missing")
    return {"update": int(path.name), "health": found, "why": why}


def _json(path: Path) -> dict[str, Any]:
    """A JSON object of a file; {} where it is missing or none, which `RunSummary.problem` tells."""
    try:
        found = read_json(path)
    except UserError:
        return {}
    return found if isinstance(found, dict) else {}


def _agent(metadata: Mapping[str, Any]) -> str:
    return str(metadata.get("agent_name") or "")


def _part(metadata: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = metadata.get(name)
    return found if isinstance(found, dict) else {}
