"""Acquires several resource reservations atomically, without hold-and-wait.

Two that each held what the other waits for would both wait until both give up.
"""

import contextlib
import random
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

HOLD_SECONDS = 5.0
"""Longest that one reservation is held while the next is waited for."""

_PAUSE_SECONDS = (0.5, 2.0)  # before the next attempt; random, so that two processes do not retry in step


_RANDOM = random.Random()  # not the module's own, whose numbers may be a user's


class Asked(Protocol):
    """A reservation that was asked for."""

    def wait(self, seconds: float) -> bool:
        """Returns whether it is there, waiting so long at most."""
        ...

    def remove(self) -> None:
        """Gives it back, or no longer asks for it."""
        ...


T = TypeVar("T", bound=Asked)


def all_or_none(asks: Sequence[Callable[[], T]], seconds: float) -> list[T]:
    """Asks for reservations one after the other until all are there at once.

    Args:
        asks: each asks for one; the first is waited for holding nothing, so the largest should be that.
        seconds: in all.

    Returns:
        All of them, in order, which the caller removes; [] if they were not to be had in time, and nothing is held then.
    """
    deadline = time.monotonic() + seconds
    while True:
        held: list[T] = []
        if _all_there(asks, held, deadline):
            return held
        left = deadline - time.monotonic()
        if left <= 0.0:
            return []
        time.sleep(min(left, _RANDOM.uniform(*_PAUSE_SECONDS)))


def _all_there(asks: Sequence[Callable[[], T]], held: list[T], deadline: float) -> bool:
    """Returns one try, which leaves nothing behind if it fails."""
    there = False
    try:
        for ask in asks:
            limit = max(0.0, deadline - time.monotonic())
            limit = min(limit, HOLD_SECONDS) if held else limit
            held.append(ask())
            there = held[-1].wait(limit)
            if not there:
                break
    except BaseException:
        there = False
        raise
    finally:
        if not there:
            for one in held:
                with contextlib.suppress(Exception):  # the cluster may be gone, and the reservation with it
                    one.remove()
    return there
