"""Validation of a manifest's contents, before any array is read because of it.

The sha256 of a manifest is no protection: the author of a malicious checkpoint can compute it.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from envpool_bridge.errors import UserError
from envpool_bridge.limits import free_host_bytes
from jaxsrl.checkpoints.manifest import CorruptCheckpointError

_MAX_DIMENSIONS, _MAX_SIZE = 32, 2**48
Form = tuple[tuple[int, ...], np.dtype]


def validate_manifest(path: Path, manifest: Any) -> None:
    """Raises unless the manifest has the expected entries.

    Raises:
        CorruptCheckpointError: If it has others.
    """
    kinds = {"files": dict, "schema": dict, "metadata": dict}
    for name, kind in kinds.items():
        if not isinstance(manifest.get(name), kind):
            raise CorruptCheckpointError(f"{path}: the manifest's {name} is no {kind.__name__}")


def reject_links(path: Path) -> None:
    """Raises if the checkpoint contains links: their targets are outside of it and may change before they are read.

    Raises:
        CorruptCheckpointError: If it contains a link or a special file.
    """
    for inside in path.rglob("*"):
        if inside.is_symlink() or not (inside.is_file() or inside.is_dir()):
            raise CorruptCheckpointError(f"{path}: {inside.relative_to(path)} is a link or a special file")


def read_form(subject: str, form: Any) -> Form:
    """Returns shape and dtype of an array by its entry in a manifest's schema.

    Raises:
        CorruptCheckpointError: If the entry is invalid; the message starts with `subject`.
    """
    if not isinstance(form, dict):
        raise CorruptCheckpointError(f"{subject}: expected a shape and a dtype, got {str(form)[:60]}")
    shape, name = form.get("shape"), form.get("dtype")
    sizes: list[Any] = shape if isinstance(shape, list) else ["no list"]
    if len(sizes) > _MAX_DIMENSIONS or not all(type(size) is int and 0 <= size < _MAX_SIZE for size in sizes):
        raise CorruptCheckpointError(f"{subject}: expected a list of sizes for its shape, got {str(shape)[:60]}")
    try:
        dtype = np.dtype(name) if isinstance(name, str) else None
    except (TypeError, ValueError):
        dtype = None
    if dtype is None or dtype.name != name or not (dtype == np.bool_ or jnp.issubdtype(dtype, np.number)):
        raise CorruptCheckpointError(f"{subject}: expected the name of a dtype of numbers, got {str(name)[:60]}")
    return tuple(sizes), dtype


def validate_match(expected: Mapping[str, Form], actual: Mapping[str, Form], prefix: str) -> None:
    """Raises unless a checkpoint's arrays are those of its destination; lists all differences, without values.

    Args:
        expected: shapes and dtypes by name, all of which start with `prefix`.
        actual: shapes and dtypes of the checkpoint; names with another prefix are ignored.
        prefix: prefix of the compared names.

    Raises:
        UserError: If an array is missing, of another shape or dtype, or unexpected.
    """
    problems: list[str] = []
    for name, form in expected.items():
        if name not in actual:
            problems.append(f"{name}: expected {_shown(form)}, missing")
        elif actual[name] != form:
            problems.append(f"{name}: expected {_shown(form)}, got {_shown(actual[name])}")
    problems += [f"{name}: not expected" for name in actual if name.startswith(prefix) and name not in expected]
    if problems:
        listed = "\n  ".join(problems[:20])
        raise UserError(f"the checkpoint was made for another network or algorithm:\n  {listed}")


def validate_stored_arrays(path: Path, schema: Mapping[str, Form], state: Path, checkpointer: ocp.Checkpointer) -> None:
    """Raises, before arrays are read, unless those on disk match the schema and fit into memory.

    Args:
        path: checkpoint, for messages.
        schema: Schema of the manifest.
        state: Orbax's directory.
        checkpointer: Orbax checkpointer that reads it.

    Raises:
        CorruptCheckpointError: shapes or dtypes differ, or Orbax cannot read them.
        UserError: If the arrays need more memory than is free.
    """
    try:
        tree: Any = checkpointer.metadata(state).item_metadata
        tree = tree.tree
        actual = {name: (tuple(leaf.shape), np.dtype(leaf.dtype)) for name, leaf in tree.items()}
    except Exception as error:  # Orbax raises various errors for foreign files
        raise CorruptCheckpointError(
            f"{path}: the arrays' shapes cannot be read ({type(error).__name__}: {str(error)[:200]})"
        ) from error
    expected = {name: form for name, form in schema.items() if math.prod(form[0])}  # Orbax stores no empty arrays
    for name in sorted(expected.keys() | actual.keys()):
        if expected.get(name) != actual.get(name):
            raise CorruptCheckpointError(
                f"{path}: array {name} has the shape and dtype {_shown(expected.get(name))} in the manifest and "
                f"{_shown(actual.get(name))} on the disk"
            )
    needed, free = sum(map(num_bytes, expected.values())), free_host_bytes()
    if free is not None and needed > free:
        raise UserError(
            f"{path}: the arrays need {needed / 2**30:,.1f} GiB of memory and {free / 2**30:,.1f} GiB are free: "
            f"use a machine with more, or save without experience (--checkpoint.no-include-replay)"
        )


def num_bytes(form: Form) -> int:
    """Returns the bytes of an array of this shape and dtype."""
    return math.prod(form[0]) * form[1].itemsize


def _shown(form: Form | None) -> str:
    return "none" if form is None else f"{form[1].name}{list(form[0])}"
