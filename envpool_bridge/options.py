"""How much a pool puts up with before it stops."""

import dataclasses
from collections import deque
from typing import Literal

from envpool_bridge.errors import UserError

BadEnvOutput = Literal["raise", "drop_episode"]


@dataclasses.dataclass(frozen=True)
class SupervisorOptions:
    """What is done about workers that die or hang, and about environments that fail.

    Only rows of a run (with a `run_seed`) can be begun anew. Gymnasium's interface has no word for an environment that was
    replaced: there the first death stops the pool.

    Attributes:
        max_restarts: of one worker within `window_seconds`, or in a row without a step between them. After one more failure its
            environments are not stepped any more (their rows are never valid again). 0 stops the pool with the first death.
        window_seconds: that restarts are counted in. Those in a row without a step count however long they take.
        max_backoff_seconds: longest wait before a worker is started again: 0, 50 ms, 100 ms, ... for restarts in a row after
            which it did not get on at all.
        step_timeout_seconds: longest that a step may take, resets that it does included, or an action of a worker's own policy.
            A worker that needs longer is made to tell its stack, killed and started again.
        start_timeout_seconds: longest that a worker may take until its first observation, replayed episodes included.
        min_alive_fraction: of the rows; with fewer the pool stops.
        bad_env_output: what to do about an environment that raises, or returns what its spaces do not allow: "raise"
            stops the pool; "drop_episode" drops the episode and makes a new environment, as often as `max_restarts` says.
            Environments are then stepped and verified one by one, which is slower.
        keep_spare: whether, from the first death on, a process is kept that has imported what environments need: who replaces a
            worker is then there sooner. It makes one environment and closes it.
    """

    max_restarts: int = 5
    window_seconds: float = 60.0
    max_backoff_seconds: float = 5.0
    step_timeout_seconds: float = 120.0
    start_timeout_seconds: float = 600.0
    min_alive_fraction: float = 0.5
    bad_env_output: BadEnvOutput = "raise"
    keep_spare: bool = True

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise UserError(f"max_restarts must be at least 0: got {self.max_restarts}")
        for name in ("window_seconds", "step_timeout_seconds", "start_timeout_seconds"):
            if getattr(self, name) <= 0.0:
                raise UserError(f"{name} must be positive: got {getattr(self, name)}")
        if self.max_backoff_seconds < 0.0:
            raise UserError(f"max_backoff_seconds must be at least 0: got {self.max_backoff_seconds}")
        if not 0.0 <= self.min_alive_fraction <= 1.0:
            raise UserError(f"min_alive_fraction must be between 0 and 1: got {self.min_alive_fraction}")
        if self.bad_env_output not in ("raise", "drop_episode"):
            raise UserError(f"bad_env_output must be 'raise' or 'drop_episode': got {self.bad_env_output!r}")


_FIRST_BACKOFF_SECONDS = 0.05


class RestartBudget:
    """Restarts of one thing within a window of time or in a row, and how long to wait before each. One thread.

    Attributes:
        total: restarts granted in all.
    """

    def __init__(self, max_restarts: int, window_seconds: float, max_backoff_seconds: float = 0.0) -> None:
        """None yet; as in SupervisorOptions."""
        self.total = 0
        self._max, self._window, self._max_backoff = max_restarts, window_seconds, max_backoff_seconds
        self._granted: deque[float] = deque()
        self._in_vain = 0  # restarts in a row that led nowhere

    def grant(self, now: float, got_on: bool) -> float | None:
        """Seconds to wait before the next restart; None if there is none left.

        Args:
            now: seconds of the monotonic clock.
            got_on: whether what is restarted did anything useful since its last start.
        """
        while self._granted and self._granted[0] <= now - self._window:
            self._granted.popleft()
        self._in_vain = 0 if got_on else self._in_vain + 1
        if len(self._granted) >= self._max or self._in_vain > self._max:  # each in vain may take longer than the window
            return None
        self._granted.append(now)
        self.total += 1
        if self._in_vain < 2:
            return 0.0
        return min(self._max_backoff, _FIRST_BACKOFF_SECONDS * 2.0 ** (self._in_vain - 2))
