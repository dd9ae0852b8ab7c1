"""Host memory for a replay buffer, allocated and touched at once, so that a lack of memory is an early error."""

import mmap
from collections.abc import Sequence

import jax
import numpy as np

from envpool_bridge.errors import UserError
from jaxsrl.machine.resources import free_host_bytes

_ALIGNMENT = 64


def allocate_arrays(shapes: Sequence[jax.ShapeDtypeStruct]) -> list[np.ndarray]:
    """Returns zero-filled arrays, adjacent in one block, with all pages touched.

    Raises:
        UserError: memory is insufficient; the message has the numbers.
    """
    starts, end = [], 0
    for shape in shapes:
        starts.append(end)
        end += -(-_bytes_of(shape) // _ALIGNMENT) * _ALIGNMENT
    block = _allocate(end)
    return [np.ndarray(shape.shape, shape.dtype, block, start) for shape, start in zip(shapes, starts, strict=True)]


def _allocate(num_bytes: int) -> np.ndarray:
    free = free_host_bytes()
    available = num_bytes if free is None else free
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
    # Windows are scattered: large pages speed up address translation. Not every kernel has them.
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass
    block = np.frombuffer(memory, np.uint8)
    block.fill(0)
    return block


def _bytes_of(shape: jax.ShapeDtypeStruct) -> int:
    return shape.size * np.dtype(shape.dtype).itemsize
