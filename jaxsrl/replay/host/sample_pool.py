"""Memory that large arrays of samples are gathered into, used again once nobody has them.

Fresh memory costs a page fault for every 4 KiB, and is seldom aligned as a device on the processor wants it, which then copies it.
"""

import mmap
import sys

import numpy as np

_LARGE_BYTES = 64 * 1024
_HUGE_PAGE = 2 * 1024 * 1024
_MOST_KEPT = 8


def is_large(num_bytes: int) -> bool:
    """Returns whether keeping memory for an array of that size is worth it."""
    return num_bytes >= _LARGE_BYTES


class SampleMemory:
    """Arrays of one shape, at most 8 of them kept. Thread-safety: one thread takes them; any thread may let go of them.

    An array is handed out again when nothing refers to it: no name, no view of it, no device array that shares its memory. That is
    when its memory would otherwise have been freed.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        """None is there before it is asked for."""
        self._shape, self._dtype = shape, dtype
        self._kept: list[np.ndarray] = []

    def take(self) -> np.ndarray:
        """Returns an array whose contents are anything, page-aligned."""
        for place in range(len(self._kept)):
            # Two references: the list's, and that of the call that counts.
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
    # Whole large pages: there are fewer addresses to be looked up. Memory that is never touched costs none.
    pages = -(-num_bytes // _HUGE_PAGE)
    memory = _map((pages + 1) * _HUGE_PAGE)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    # Not every kernel has large pages.
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass
    return np.ndarray(shape, dtype, memory, -address % _HUGE_PAGE)


def _map(num_bytes: int) -> mmap.mmap:
    return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
