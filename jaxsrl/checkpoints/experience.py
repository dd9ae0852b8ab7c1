"""File of a checkpoint's experience: arrays as they are in memory, one after the other, written and read in pieces.

Experience may take most of the memory. Orbax holds compressed copies of whole arrays while it writes.
"""

import functools
import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxsrl.checkpoints.manifest import CorruptCheckpointError
from jaxsrl.checkpoints.schema import Form, num_bytes

PIECE_BYTES = 1 << 26
"""Most bytes of an array that are copied at a time, unless one step of all rows has more."""
_ALIGNMENT = 64


def write_experience(path: Path, arrays: Mapping[str, Any]) -> str:
    """Writes arrays to a file, which is on disk when this returns; returns its sha256 in hexadecimal.

    Args:
        path: file to create.
        arrays: numpy or jax arrays; those on devices are fetched piece by piece.
    """
    digest = hashlib.sha256()
    with open(path, "wb") as file, ThreadPoolExecutor(1) as thread:
        for piece in _pieces(arrays):
            hashed = thread.submit(digest.update, piece.data)
            if piece.any():
                file.write(piece.data)
            else:  # unused places of a ring take no space on disk
                file.seek(piece.nbytes, os.SEEK_CUR)
            file.flush()
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):  # pages of the file would count as memory of the control group
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            hashed.result()
        file.truncate()
        os.fsync(file.fileno())
    return digest.hexdigest()


def map_experience(path: Path, forms: Mapping[str, Form]) -> dict[str, np.ndarray]:
    """Returns the arrays of a file as read-only views of it, which take no memory of their own.

    Args:
        path: file that `write_experience` has written.
        forms: shapes and dtypes of its arrays by name, in the order in which they were written.

    Raises:
        CorruptCheckpointError: If the file has another size.
    """
    total, actual = sum(_aligned(num_bytes(form)) for form in forms.values()), path.stat().st_size
    if total != actual:
        raise CorruptCheckpointError(f"{path}: expected {total} bytes by the shapes in the manifest, got {actual}")
    data = np.asarray(np.memmap(path, np.uint8, "r")) if total else np.zeros(0, np.uint8)
    arrays: dict[str, np.ndarray] = {}
    start = 0
    for name, form in forms.items():
        arrays[name] = data[start : start + num_bytes(form)].view(form[1]).reshape(form[0])
        start += _aligned(num_bytes(form))
    return arrays


def _pieces(arrays: Mapping[str, Any]) -> Iterator[np.ndarray]:
    """Yields the bytes of all arrays, uint8 each, in order."""
    for array in arrays.values():
        size = 0
        for piece in _pieces_of(array):
            size += piece.nbytes
            yield np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
        yield np.zeros(_aligned(size) - size, np.uint8)


def _pieces_of(array: Any) -> Iterator[np.ndarray]:
    """Yields an array in parts along its first axis."""
    if array.nbytes <= PIECE_BYTES or not array.ndim:
        yield np.asarray(array)
        return
    length = len(array)
    rows = max(1, PIECE_BYTES * length // array.nbytes)
    for start in range(0, length, rows):
        if isinstance(array, np.ndarray):
            yield array[start : start + rows]
        else:  # one program for all parts: the last one overlaps the one before it
            first = min(start, length - rows)
            yield np.asarray(_slice(array, first, rows))[start - first :]


@functools.partial(jax.jit, static_argnums=2)
def _slice(array: jax.Array, start: Any, size: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(array, start, size)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
