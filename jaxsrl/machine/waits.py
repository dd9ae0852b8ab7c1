"""Waits for other threads that outlast a pause of the process (SIGSTOP, Ctrl-Z, `scontrol suspend`)."""

import math
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
_MIN_SLICES = 8  # a pause takes an eighth of a short timeout, and at most a second of a long one


def wait_in_slices(wait: Callable[[float], bool], timeout_seconds: float) -> bool:
    """Returns whether one of several waits, which together take `timeout_seconds`, was successful.

    The clock also runs while the process is paused. A pause ends only the slice that it falls into.

    Args:
        wait: waits at most this number of seconds, and returns whether it was successful.
        timeout_seconds: longest wait while the process runs.
    """
    num_slices = max(_MIN_SLICES, math.ceil(timeout_seconds))
    return any(wait(timeout_seconds / num_slices) for _ in range(num_slices))


def wait_for_result(future: Future[T], timeout_seconds: float) -> T:
    """Returns the result of a future, as `Future.result` does.

    Raises:
        TimeoutError: If it has not ended in time.
    """

    def ends(seconds: float) -> bool:
        try:
            future.exception(seconds)
        except TimeoutError:  # of this wait: an error of what the future computes is returned
            return False
        return True

    wait_in_slices(ends, timeout_seconds)
    return future.result(0.0)
