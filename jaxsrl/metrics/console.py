"""Metrics on the terminal: a live view, or one plain line per interval without a terminal."""

import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live

from jaxsrl.metrics.evaluations import Evaluation
from jaxsrl.metrics.live_state import RunInfo, RunState, initial_state, seconds_left, with_evaluation, with_record
from jaxsrl.metrics.sinks import Record
from jaxsrl.metrics.terminal_view import RunPanel, failures
from jaxsrl.terminal.format import format_duration, format_number

_REFRESHES_PER_SECOND = 1  # only clocks change between two records


class ConsoleSink:
    """Sink that shows the newest record.

    Args:
        facts: constants of the run.
        returns: mean returns of the records of earlier processes; the curve continues from them.
        evaluations: Evaluations of earlier processes.
    """

    def __init__(self, facts: RunInfo, returns: Sequence[float] = (), evaluations: Sequence[Evaluation] = ()) -> None:
        self._state = initial_state(facts, returns, evaluations)
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

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Shows the newest evaluation with the next record."""
        self._state = with_evaluation(self._state, evaluation)

    def close(self) -> None:
        """Stops the live view; its last frame stays on the screen."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()


def plain_line(state: RunState) -> str:
    """Returns the newest record as one line, without unknown values."""
    values = state.values
    parts = [f"{state.progress:4.0%}", f"{state.env_steps:,} {state.facts.step_unit}"]
    if "episode/return_mean" in values:
        parts.append(f"training return {format_number(values['episode/return_mean'])}")
    if state.evaluation is not None:
        parts.append(
            f"evaluation return {format_number(state.evaluation.mean_return)} at {state.evaluation.env_steps:,}"
        )
    speed, repeat = values.get("speed/env_steps_per_second", 0.0), state.facts.action_repeat
    frames = f" ({speed * repeat:,.0f} frames/s)" if repeat > 1 else ""
    parts.append(f"{speed:,.0f} {state.facts.step_unit}/s{frames}")
    parts.append(f"lag {values.get('policy/lag_max', 0.0):.0f}")
    waits = [
        f"{fragment.name} {values[f'utilization/{fragment.name}/wait']:.0%}"
        for fragment in state.facts.plan.fragments
        if f"utilization/{fragment.name}/wait" in values
    ]
    if waits:
        parts.append("waits: " + ", ".join(waits))
    parts += [text for _, text in failures(values)]
    left = seconds_left(state)
    if left:
        parts.append(f"{format_duration(left)} left")
    return " | ".join(parts)
