"""Settings of an environment process, timer slack and garbage collection, and its end."""

import atexit
import contextlib
import ctypes
import gc
import io
import os
import sys
import traceback
import types
from collections.abc import Iterable
from typing import NoReturn

_PR_SET_TIMERSLACK = 29  # linux/prctl.h
_MOST_OBJECTS = 100_000  # that are searched for open files
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


def flush_files(owners: Iterable[object]) -> None:
    """Flushes the open files that objects refer to, directly or through at most 100,000 others that are no code."""
    objects, seen = [*owners], set[int]()
    for each in objects:  # which grows
        if len(seen) == _MOST_OBJECTS:
            break
        if id(each) in seen or isinstance(each, (type, types.ModuleType, types.FunctionType)):
            continue
        seen.add(id(each))
        if isinstance(each, io.IOBase):
            with contextlib.suppress(Exception):  # it is closed
                each.flush()
        objects += gc.get_referents(each)


def end_forked_process(status: int) -> NoReturn:
    """Ends a forked process after its finalizers: temporary directories are removed, processes of `multiprocessing` ended."""
    try:
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001  of any finalizer
        traceback.print_exc()
    flush_output()
    os._exit(status)
