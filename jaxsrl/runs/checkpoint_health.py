"""Health of checkpoints. Read-only: damaged ones stay in place. No jax."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.manifest import MANIFEST, CorruptCheckpointError, read_manifest

WHOLE, DAMAGED, OTHER_VERSION, GONE = "whole", "damaged", "other version", "gone"


def checkpoint_health(path: Path, verify: Callable[[dict[str, Any]], None]) -> tuple[str, str]:
    """Returns the health of a checkpoint and its reason, "" for a whole one; `verify` raises for a damaged one."""
    try:
        verify(read_manifest(path))
    except CorruptCheckpointError as error:
        return DAMAGED, str(error)
    except UserError as error:
        is_checkpoint = (path / MANIFEST).is_file()
        return (OTHER_VERSION, str(error)) if is_checkpoint else (DAMAGED, f"{path}: {MANIFEST} is missing")
    except OSError as error:
        return (DAMAGED, f"{path}: {error.strerror}") if path.exists() else (GONE, "removed meanwhile")
    return WHOLE, ""


def list_quarantine(run: Path) -> list[str]:
    """Returns the names of damaged checkpoints that the run moved to quarantine; sorted."""
    try:
        return sorted(path.name for path in (run / "checkpoints" / "quarantine").iterdir())
    except OSError:
        return []
