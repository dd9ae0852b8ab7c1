"""What a manifest may say, checked before anything is read because of it.

Whoever can write a checkpoint can write its sha256 too.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.manifest import CorruptCheckpointError
from jaxsrl.machine.resources import free_host_bytes

_MAX_DIMENSIONS, _MAX_SIZE = 32, 2**48
Form = tuple[tuple[int, ...], np.dtype]


def validate_manifest(path: Path, manifest: Any) -> None:
    """Refuses a manifest that has other entries than ours have.

    Raises:
        CorruptCheckpointError: it has.
    """
    kinds = {"files": dict, "schema": dict, "metadata": dict}
    for name, kind in kinds.items():
        if not isinstance(manifest.get(name), kind):
            raise CorruptCheckpointError(f"{path}: the manifest's {name} is no {kind.__name__}")


def reject_links(path: Path) -> None:
    """Refuses links: what they name is not the checkpoint's, and may be anything by the time it is read.

    Raises:
        CorruptCheckpointError: there is one in the checkpoint's directory.
    """
    for inside in path.rglob("*"):
        if inside.is_symlink() or not (inside.is_file() or inside.is_dir()):
            raise CorruptCheckpointError(f"{path}: {inside.relative_to(path)} is a link, or no ordinary file")


def parse_schema(path: Path, schema: Mapping[str, Any]) -> dict[str, Form]:
    """Shape and dtype of every array.

    Args:
        path: of the checkpoint, for messages.
        schema: of the manifest: by name, a shape and a dtype's name.

    Raises:
        CorruptCheckpointError: one of them is none.
    """
    return {name: _read_form(f"{path}: array {name}", form) for name, form in schema.items()}


def _read_form(what: str, form: Any) -> Form:
    if not isinstance(form, dict):
        raise CorruptCheckpointError(f"{what}: expected a shape and a dtype, got {str(form)[:60]}")
    shape, name = form.get("shape"), form.get("dtype")
    sizes: list[Any] = shape if isinstance(shape, list) else ["no list"]
    if len(sizes) > _MAX_DIMENSIONS or not all(type(size) is int and 0 <= size < _MAX_SIZE for size in sizes):
        raise CorruptCheckpointError(f"{what}: expected a list of sizes for its shape, got {str(shape)[:60]}")
    try:
        dtype = np.dtype(name) if isinstance(name, str) else None
    except (TypeError, ValueError):
        dtype = None
    if dtype is None or dtype.name != name or not (dtype == np.bool_ or jnp.issubdtype(dtype, np.number)):
        raise CorruptCheckpointError(f"{what}: expected the name of a dtype of numbers, got {str(name)[:60]}")
    return tuple(sizes), dtype


def validate_match(wanted: Mapping[str, Form], found: Mapping[str, Form], prefix: str) -> None:
    """Refuses a checkpoint whose arrays are not those of what it is to be read into: all differences, without their values.

    Args:
        wanted: shapes and dtypes by name, all of which begin with `prefix`.
        found: those of the checkpoint; what has another prefix does not matter.
        prefix: of the part in question.

    Raises:
        UserError: an array is missing, of another shape or dtype, or left over.
    """
    problems: list[str] = []
    for name, form in wanted.items():
        if name not in found:
            problems.append(f"{name}: expected {_shown(form)}, missing")
        elif found[name] != form:
            problems.append(f"{name}: expected {_shown(form)}, got {_shown(found[name])}")
    problems += [f"{name}: not expected" for name in found if name.startswith(prefix) and name not in wanted]
    if problems:
        listed = "\n  ".join(problems[:20])
        raise UserError(f"the checkpoint was made for another network or algorithm:\n  {listed}")


def validate_stored_arrays(path: Path, schema: Mapping[str, Form], state: Path, checkpointer: ocp.Checkpointer) -> None:
    """Refuses arrays on the disk that are not those of the schema, or more than this machine holds, before they are read.

    Args:
        path: of the checkpoint, for messages.
        schema: of `parse_schema`.
        state: Orbax's directory.
        checkpointer: that reads it.

    Raises:
        CorruptCheckpointError: shapes or dtypes differ, or Orbax cannot tell them.
        UserError: the arrays take more memory than there is.
    """
    try:
        tree: Any = checkpointer.metadata(state).item_metadata
        tree = tree.tree
        found = {name: (tuple(leaf.shape), np.dtype(leaf.dtype)) for name, leaf in tree.items()}
    except Exception as error:  # whatever Orbax makes of files that are not its own
        raise CorruptCheckpointError(
            f"{path}: the arrays' shapes cannot be read ({type(error).__name__}: {str(error)[:200]})"
        ) from error
    wanted = {name: form for name, form in schema.items() if math.prod(form[0])}  # Orbax holds no empty ones
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise CorruptCheckpointError(
                f"{path}: array {name} has the shape and dtype {_shown(wanted.get(name))} in the manifest and "
                f"{_shown(found.get(name))} on the disk"
            )
    needed, free = sum(math.prod(shape) * dtype.itemsize for shape, dtype in wanted.values()), free_host_bytes()
    if free is not None and needed > free:
        raise UserError(
            f"{path}: the arrays need {needed / 2**30:,.1f} GiB of memory and {free / 2**30:,.1f} GiB are free: "
            f"use a machine with more, or save without experience (--run.no-checkpoint-replay)"
        )


def _shown(form: Form | None) -> str:
    return "none" if form is None else f"{form[1].name}{list(form[0])}"
