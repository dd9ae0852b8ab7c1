"""Progress of an evaluation in this process: lines on the screen, and a deadline for every step."""

import contextlib
import time
from collections.abc import Callable, Iterator

from jaxsrl.evaluation.player import RowsPlayer
from jaxsrl.training.watchdog import OPTION, Watchdog

_LEAST_SECONDS = 10.0  # between two lines; longer as the evaluation takes longer
_OUTCOME = "Checkpoints are complete, and the same command plays again."


class ProgressLines:
    """Callback for each step of an evaluation, which shows a line at growing intervals.

    Args:
        episodes: number of episodes that are played.
        show: receives the lines.
    """

    def __init__(self, episodes: int, show: Callable[[str], None]) -> None:
        self._episodes, self._show = episodes, show
        self._started = time.monotonic()
        self._next = _LEAST_SECONDS

    def __call__(self, finished: int) -> None:
        """Shows a line if one is due."""
        seconds = time.monotonic() - self._started
        if seconds >= self._next:
            self._next = seconds + max(_LEAST_SECONDS, seconds / 10)
            self._show(f"evaluation: {finished} of {self._episodes} episodes after {seconds:.0f} s")


@contextlib.contextmanager
def step_deadline(
    limit_seconds: float, log: Callable[[str], None] = lambda line: None, option: str = OPTION
) -> Iterator[None]:
    """Ends the process if no evaluation, recording or game in it makes a step for too long.

    Args:
        limit_seconds: longest time between two steps, compilation included.
        log: keeps the message.
        option: name of the limit, for the message.
    """
    waits = ["it waits for its environments or its policy"]
    count: Callable[[], dict[str, float]] = lambda: {"steps": float(RowsPlayer.steps_of_process)}  # noqa: E731
    with Watchdog(limit_seconds, count, lambda is_waiting: waits, log, option, _OUTCOME).watching():
        yield
