"""Threads that run one at a time, and whose requests are served together."""

import threading
from collections.abc import Callable
from typing import Any


class Turns:
    """Lets the threads of N members run in turn, and serves their requests once every member has one.

    A thread runs from the end of one request to its next, and then the thread of the next member runs. A member that has left
    runs next to the others. Thread-safety: each member calls from its own thread. A wait lasts as long as the turns of the
    other members; the watchdog of each member's run is its deadline.

    Args:
        num_members: N.
        serve: called with the request of each member that has not left; its error is raised in all of them.
    """

    def __init__(self, num_members: int, serve: Callable[[dict[int, Any]], None]) -> None:
        self._serve = serve
        self._lock = threading.Lock()
        # One each: a thread that wakes up for the turn of another costs both time.
        self._changed = [threading.Condition(self._lock) for _ in range(num_members)]
        self._present = set(range(num_members))
        self._requests: dict[int, Any] = {}
        self._turn = 0
        self._error: BaseException | None = None

    @property
    def has_failed(self) -> bool:
        """Returns whether `serve` has raised an error."""
        return self._error is not None

    def enter(self, member: int) -> None:
        """Waits for the first turn of a member."""
        with self._lock:
            self._wait(member)

    def request(self, member: int, value: Any) -> None:
        """Ends the turn of a member with a request, and waits until it is served and the next turn starts."""
        with self._lock:
            self._requests[member] = value
            self._pass_turn()
            self._wait(member)

    def leave(self, member: int) -> None:
        """Ends the last turn of a member; idempotent."""
        with self._lock:
            if member not in self._present:
                return
            self._present.remove(member)
            if self._turn == member:
                self._pass_turn()

    def _pass_turn(self) -> None:
        idle = self._present - self._requests.keys()
        if self._present and not idle and self._error is None:
            try:
                self._serve(self._requests)
            except BaseException as error:  # noqa: BLE001  raised in the thread of each member
                self._error = error
            self._requests, idle = {}, self._present
        self._turn = min(idle, default=-1)
        for member in self._present if self._error is not None else idle & {self._turn}:
            self._changed[member].notify()

    def _wait(self, member: int) -> None:
        self._changed[member].wait_for(lambda: self._turn == member or self._error is not None)
        if self._error is not None:
            raise self._error
