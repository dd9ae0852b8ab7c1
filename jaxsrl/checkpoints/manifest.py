"""Manifest that proves a checkpoint intact, and the verification of the files it lists. No jax."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError

FORMAT = 3
MANIFEST = "MANIFEST.json"
EXPERIENCE = "experience.bin"
"""File of experience, which only the newest checkpoint of a run keeps: it may be missing."""
STEP = re.compile("0|[1-9][0-9]*")
"""Names of complete checkpoints."""
UNFINISHED = re.compile(r"\.(0|[1-9][0-9]*)(\.replaced)?\.tmp")
"""Names of checkpoints that are being written or replaced."""


class CorruptCheckpointError(Exception):
    """Checkpoint whose files do not match its manifest."""


def sign_manifest(manifest: Mapping[str, Any]) -> str:
    """Returns the text of a manifest, with the sha256 of its contents."""
    contents = {name: value for name, value in manifest.items() if name != "sha256"}
    digest = hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()
    return json.dumps({**contents, "sha256": digest}, indent=1)


def read_manifest(path: Path) -> dict[str, Any]:
    """Returns the manifest of the checkpoint directory `path`.

    Raises:
        UserError: If the path is no checkpoint, or one of another format.
        CorruptCheckpointError: If the manifest was changed.
    """
    try:
        text = (path / MANIFEST).read_text()
        manifest = json.loads(text)
        version, is_whole = manifest["format"], sign_manifest(manifest) == text
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{path} is no checkpoint: expected a directory with {MANIFEST}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptCheckpointError(f"{path}: {MANIFEST} cannot be read ({error})") from error
    # Format 1 had no sha256 of its own.
    if version != FORMAT and (is_whole or "sha256" not in manifest):
        raise UserError(f"{path} has checkpoint format {version}, this version of jaxsrl reads {FORMAT}")
    if not is_whole:
        raise CorruptCheckpointError(f"{path}: {MANIFEST} is not what was written (sha256 differs)")
    return manifest


def is_checkpoint(path: Path) -> bool:
    """Returns whether a directory has a manifest, damaged or not, of the step that is its name: only such ones may be deleted."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        return {"format", "files"} <= set(manifest) and str(manifest["step"]) == path.name and not path.is_symlink()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def list_steps(directory: Path) -> list[int]:
    """Returns the numbers that are names in a directory of checkpoints, in order; [] without the directory."""
    try:
        return sorted(int(path.name) for path in directory.iterdir() if STEP.fullmatch(path.name))
    except (FileNotFoundError, NotADirectoryError):
        return []


def verify_files(path: Path, manifest: Mapping[str, Any], with_experience: bool = True) -> None:
    """Compares every file of a checkpoint with its manifest.

    Args:
        path: directory of the checkpoint.
        manifest: contents of its manifest.
        with_experience: Whether to read experience, too.

    Raises:
        CorruptCheckpointError: If a file is missing, added or changed.
    """
    files, present = dict(manifest["files"]), set(list_files(path)) - {MANIFEST}
    if EXPERIENCE in files and (not with_experience or EXPERIENCE not in present):
        present.discard(EXPERIENCE)
        del files[EXPERIENCE]
    if present != set(files):
        raise CorruptCheckpointError(f"{path}: files differ from the manifest: {sorted(present ^ set(files))}")
    for name, digest in files.items():
        if file_sha256(path / name) != digest:
            raise CorruptCheckpointError(f"{path}: {name} is not what was written (sha256 differs)")


def list_files(directory: Path) -> list[str]:
    """Returns the relative path of every file in a directory; sorted."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def file_sha256(path: Path) -> str:
    """Returns the sha256 of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
