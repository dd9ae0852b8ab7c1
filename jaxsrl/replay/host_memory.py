"""Memory of the host for a replay buffer: there before anything starts, or refused."""

import mmap
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from envpool_bridge.errors import UserError

_ALIGNMENT = 64
_MEMORY = Path("/proc/meminfo")
_GROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


def available_bytes() -> int:
    """Bytes that this process can still have: of the machine, and of its container if that allows fewer."""
    fields = (line.split() for line in _MEMORY.read_text().splitlines())
    available = next(int(words[1]) * 1024 for words in fields if words[0] == "MemAvailable:")
    for limit, used in _GROUPS:
        if limit.exists() and (text := limit.read_text().strip()) != "max":
            available = min(available, int(text) - int(used.read_text()))
    return available


def allocate_arrays(shapes: Sequence[jax.ShapeDtypeStruct]) -> list[np.ndarray]:
    """Zero-filled arrays side by side in one block, each page of it there.

    Raises:
        UserError: the memory is not there; with the numbers.
    """
    starts, end = [], 0
    for shape in shapes:
        starts.append(end)
        end += -(-_bytes_of(shape) // _ALIGNMENT) * _ALIGNMENT
    block = _allocate(end)
    return [np.ndarray(shape.shape, shape.dtype, block, start) for shape, start in zip(shapes, starts, strict=True)]


def _allocate(num_bytes: int) -> np.ndarray:
    available = available_bytes()
    message = (
        f"the replay buffer needs {num_bytes / 2**20:,.1f} MiB of the host's memory, and {available / 2**20:,.1f} MiB are "
        f"available: set replay.capacity to less than {available / max(1, num_bytes):.2f} of what it is, or free memory"
    )
    if num_bytes > available:
        raise UserError(message)
    try:
        memory = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise UserError(message) from error
    # Windows lie anywhere: with large pages their addresses are found sooner. Not every kernel has them.
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass
    block = np.frombuffer(memory, np.uint8)
    block.fill(0)
    return block


def _bytes_of(shape: jax.ShapeDtypeStruct) -> int:
    return shape.size * np.dtype(shape.dtype).itemsize
