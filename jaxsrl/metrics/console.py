"""The terminal: one calm live view, or one plain line an interval where there is no terminal."""

import sys
import time
from collections import deque

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from jaxsrl.metrics.sinks import Record

_BARS = "▁▂▃▄▅▆▇█"


class ConsoleSink:
    """Shows the newest record."""

    def __init__(self, total_env_steps: int, action_repeat: int, title: str) -> None:
        """A view of a run of `total_env_steps`."""
        self._total = total_env_steps
        self._repeat = action_repeat
        self._title = title
        self._returns: deque[float] = deque(maxlen=40)
        self._started = time.monotonic()
        self._live: Live | None = None
        if sys.stdout.isatty():
            self._live = Live(Table(), console=Console(), refresh_per_second=2, transient=False)
            self._live.start()

    def write(self, record: Record) -> None:
        """Shows the record."""
        if "episode/return_mean" in record.values:
            self._returns.append(record.values["episode/return_mean"])
        if self._live is None:
            print(self._line(record), flush=True)  # noqa: T201
        else:
            self._live.update(self._table(record))

    def close(self) -> None:
        """Leaves the last view on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _line(self, record: Record) -> str:
        values = record.values
        parts = [f"{record.env_steps / self._total:4.0%}", f"{record.env_steps:,} env steps"]
        if "episode/return_mean" in values:
            parts.append(f"return {values['episode/return_mean']:.1f}")
        parts.append(self._speed(values))
        parts.append(f"lag {values.get('policy/lag_max', 0):.0f}")
        parts.append(self._waits(values))
        return " | ".join(parts)

    def _speed(self, values: dict[str, float]) -> str:
        speed = values.get("speed/env_steps_per_second", 0.0)
        frames = f" ({speed * self._repeat:,.0f} frames/s)" if self._repeat > 1 else ""
        return f"{speed:,.0f} env steps/s{frames}"

    def _waits(self, values: dict[str, float]) -> str:
        names = ("environment", "inference", "learner")
        shares = [f"{name} {values.get(f'wait_share/{name}', 0.0):.0%}" for name in names]
        return "waits: " + ", ".join(shares)

    def _table(self, record: Record) -> Table:
        values = record.values
        elapsed = time.monotonic() - self._started
        left = elapsed * (self._total - record.env_steps) / record.env_steps if record.env_steps else 0.0
        table = Table.grid(padding=(0, 2))
        table.add_row("run", self._title)
        table.add_row("progress", ProgressBar(self._total, record.env_steps, width=40))
        table.add_row("", f"{record.env_steps:,} of {self._total:,} env steps, about {max(0.0, left):.0f} s left")
        if self._returns:
            low, high = min(self._returns), max(self._returns)
            scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
            curve = "".join(_BARS[int((value - low) * scale)] for value in self._returns)
            table.add_row("return", f"{self._returns[-1]:.1f} (mean of last 100 episodes)  {curve}")
        table.add_row("speed", self._speed(values))
        table.add_row(
            "policy lag", f"{values.get('policy/lag_mean', 0):.2f} mean, {values.get('policy/lag_max', 0):.0f} max"
        )
        table.add_row("", self._waits(values))
        checkpoint = values.get("checkpoint/update", 0.0)
        table.add_row("checkpoint", f"update {checkpoint:.0f}" if checkpoint else "none yet")
        return table
