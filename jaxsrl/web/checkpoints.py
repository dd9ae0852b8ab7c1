"""Checkpoints of a run and their health. Read-only: damaged ones stay in place."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.manifest import CorruptCheckpointError, read_manifest, verify_files
from jaxsrl.runs.checkpoint_health import GONE, WHOLE, checkpoint_health, list_quarantine
from jaxsrl.runs.summary import checkpoint_steps

UNCHECKED = "not checked"
_MOST_BYTES = 1 << 30  # larger ones are not checked here: sha256 takes about a second per GiB
_Key = tuple[str, int, int]


class Checkpoints:
    """Health of checkpoints, cached until their files change. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[_Key, tuple[str, str]] = {}

    def of(self, run: Path) -> dict[str, Any]:
        """Returns the checkpoints of a run as JSON data.

        Returns:
            `checkpoints`, newest first; `versions` of its newest writer; `quarantine`, the names of damaged checkpoints that
            a run moved there.
        """
        checkpoints = [self._inspect(run / "checkpoints" / str(step)) for step in reversed(checkpoint_steps(run))]
        versions = next((one.pop("versions") for one in checkpoints if one.get("versions")), {})
        return {
            "checkpoints": [{name: item for name, item in one.items() if name != "versions"} for one in checkpoints],
            "versions": versions,
            "quarantine": list_quarantine(run),
        }

    def _inspect(self, path: Path) -> dict[str, Any]:
        one: dict[str, Any] = {"update": int(path.name), "bytes": 0, "changed": None, "arrays": None}
        try:
            files = [file.stat() for file in path.rglob("*") if file.is_file()]
            one["bytes"], one["changed"] = sum(file.st_size for file in files), path.stat().st_mtime
            newest = max((file.st_mtime_ns for file in files), default=0)
        except OSError:
            return {**one, "health": GONE, "why": "removed meanwhile: a run stores only its newest checkpoints"}
        key = (str(path), newest, one["bytes"])
        with self._lock:
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = _health(path, one["bytes"])
        one["health"], one["why"] = known
        if known[0] in (WHOLE, UNCHECKED):
            one |= _describe(path)
        return one


def _health(path: Path, num_bytes: int) -> tuple[str, str]:
    """Returns the health and its reason."""
    if num_bytes <= _MOST_BYTES:
        return checkpoint_health(path, partial(verify_files, path))
    health, why = checkpoint_health(path, lambda manifest: None)
    return (UNCHECKED, f"large: `jaxsrl inspect {path}` checks it") if health == WHOLE else (health, why)


def _describe(path: Path) -> dict[str, Any]:
    try:
        manifest = read_manifest(path)
    except (UserError, CorruptCheckpointError):
        return {}
    return {
        "arrays": len(manifest.get("schema", {})),
        "env_steps": manifest.get("metadata", {}).get("env_steps"),
        "versions": manifest.get("versions", {}),
    }
