"""Pool of memory for large arrays of samples, reused once nothing refers to it.

New memory costs a page fault for every 4 KiB. It is seldom aligned as a CPU device requires, and the device would then copy it.
"""

import mmap
import sys

import numpy as np

_LARGE_BYTES = 64 * 1024
_HUGE_PAGE = 2 * 1024 * 1024
_MOST_KEPT = 8


def is_large(num_bytes: int) -> bool:
    """Returns whether reusing memory pays off for an array of that size."""
    return num_bytes >= _LARGE_BYTES


class SampleMemory:
    """Arrays of one shape, at most 8 of them kept. Thread-safety: one thread takes them; any thread may release them.

    An array is reused when nothing refers to it: no name, no view, and no device array that shares its memory.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._shape, self._dtype = shape, dtype
        self._kept: list[np.ndarray] = []

    def take(self) -> np.ndarray:
        """Returns a page-aligned array with arbitrary contents."""
        for place in range(len(self._kept)):
            # Two references: the list's, and that of this call.
            if sys.getrefcount(self._kept[place]) <= 2:
                return self._kept[place]
        array = _new_array(self._shape, self._dtype)
        if len(self._kept) < _MOST_KEPT:
            self._kept.append(array)
        return array


def _new_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    num_bytes = int(np.prod(shape)) * dtype.itemsize
    if num_bytes < _HUGE_PAGE // 4:
        return np.ndarray(shape, dtype, _map(num_bytes))
    # Whole large pages: fewer addresses to translate. Memory that is never touched costs none.
    pages = -(-num_bytes // _HUGE_PAGE)
    memory = map_large_pages((pages + 1) * _HUGE_PAGE)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    return np.ndarray(shape, dtype, memory, -address % _HUGE_PAGE)


def map_large_pages(num_bytes: int) -> mmap.mmap:
    """Returns new memory in large pages, where the kernel has them; raises OSError if there is not enough."""
    memory = _map(num_bytes)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass  # not every kernel has large pages
    return memory


def _map(num_bytes: int) -> mmap.mmap:
    return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
