"""Settings of an environment process, timer slack and garbage collection, and the output it has not written yet."""

import contextlib
import ctypes
import gc
import os
import sys

_PR_SET_TIMERSLACK = 29  # linux/prctl.h
_NEW_OBJECTS = 50_000  # between two garbage collections; Python's own setting is 700


def wake_on_time(nanoseconds: int = 1) -> None:
    """Sets how late the kernel may end the sleeps of this thread, and of threads and processes that it starts later.

    Linux allows 50 microseconds by default, to wake several sleepers at once: 1 % of a step that sleeps for 5 milliseconds.

    Args:
        nanoseconds: Nanoseconds of slack, at least 1 (0 is the system's default).

    Raises:
        OSError: If the system rejects the setting.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(nanoseconds), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def collect_garbage_rarely() -> None:
    """Excludes all existing objects from garbage collection, and raises the threshold of later collections.

    Collections would run some hundred times a second and cost 1 to 3 % of CartPole's speed (docs/benchmarks). They find nothing:
    reference counts free what a step makes. Environments that leave cycles are still collected, in larger portions.
    """
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 20, 100)


def flush_output() -> None:
    """Writes what was printed: Python keeps it in memory where the output is a file or a pipe, and `os._exit` drops it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or replaced by an environment
            stream.flush()
