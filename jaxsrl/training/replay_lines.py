"""Lines about the replay of episodes at a resume."""

import time
from collections.abc import Callable, Mapping

from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.spec.tree import leaves
from jaxsrl.collect.collector import SUPERVISION_METRICS

_FIRST_SECONDS, _SECONDS = 10.0, 60.0


class ReplayLines:
    """Writer of a line with an estimate after 10 s of a replay, and every minute from then on.

    Args:
        reset: Episodes in progress.
        log: Function that writes a line.
        clock: Clock in seconds.
    """

    def __init__(
        self, reset: EpisodeReset, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._num_steps = sum(len(leaves(actions)[0]) for actions in reset.actions if actions is not None)
        self._log, self._clock, self._start = log, clock, clock()
        self._due = self._start + _FIRST_SECONDS

    def __call__(self, totals: Mapping[str, float]) -> bool:
        """Writes the line if it is due; returns False.

        Args:
            totals: Metrics of the collector.
        """
        now, steps = self._clock(), totals.get(SUPERVISION_METRICS["replayed_steps"], 0.0)
        if now >= self._due and 0 < steps < self._num_steps:
            self._due = now + _SECONDS
            left = (now - self._start) * (self._num_steps / steps - 1.0)
            self._log(
                f"environments replay the episodes in progress: {steps:,.0f} of {self._num_steps:,} steps, about {left:,.0f} s "
                f"more; --checkpoint.no-replay-episodes starts new ones"
            )
        return False
