"""Metrics on the terminal: a live view, or one plain line per interval without a terminal."""

import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live

from jaxsrl.metrics.live_state import RunInfo, initial_state, with_record
from jaxsrl.metrics.plain_line import plain_line
from jaxsrl.metrics.sinks import Record
from jaxsrl.metrics.terminal_view import RunPanel

_REFRESHES_PER_SECOND = 1  # only clocks change between two records


class ConsoleSink:
    """Sink that shows the newest record.

    Args:
        facts: constants of the run.
        returns: mean returns of the records of earlier processes; the curve continues from them.
    """

    def __init__(self, facts: RunInfo, returns: Sequence[float] = ()) -> None:
        self._state = initial_state(facts, returns)
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
        """Stops the live view; its last frame stays on the screen."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()
