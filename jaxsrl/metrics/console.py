"""The terminal: one calm live view, or one plain line an interval where there is no terminal."""

import sys
import time
from collections.abc import Iterable

from rich.console import Console
from rich.live import Live

from jaxsrl.metrics.live_state import RunInfo, initial_state, with_record
from jaxsrl.metrics.plain_line import plain_line
from jaxsrl.metrics.sinks import Record
from jaxsrl.metrics.terminal_view import RunPanel

_REFRESHES_PER_SECOND = 1  # what changes between two records is a clock


class ConsoleSink:
    """Shows the newest record."""

    def __init__(self, facts: RunInfo, seen: Iterable[Record] = ()) -> None:
        """A view of a run.

        Args:
            facts: of the run.
            seen: records of processes before this one, oldest first: the curve goes on from them.
        """
        self._state = initial_state(facts, seen)
        self._since = time.monotonic()
        self._live: Live | None = None
        if sys.stdout.isatty():
            panel = RunPanel(lambda: self._state, lambda: time.monotonic() - self._since)
            self._live = Live(panel, console=Console(), refresh_per_second=_REFRESHES_PER_SECOND)
            self._live.start()

    def write(self, record: Record) -> None:
        """Shows the record."""
        self._state, self._since = with_record(self._state, record), time.monotonic()
        if self._live is None:
            print(plain_line(self._state), flush=True)  # noqa: T201
        else:
            self._live.refresh()

    def close(self) -> None:
        """Leaves the last view on the screen."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()
