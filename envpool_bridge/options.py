"""Options of a pool: its rows, and restart limits and timeouts of its workers."""

import dataclasses
from collections import deque
from typing import Literal

from envpool_bridge.errors import UserError

BadEnvOutput = Literal["raise", "drop_episode"]


@dataclasses.dataclass(frozen=True)
class SupervisorOptions:
    """Options for workers that die or hang, and for environments that fail.

    Only rows of a run (with a `run_seed`) can be restarted. Gymnasium's interface cannot express that an environment
    was replaced, so without a `run_seed` the first death stops the pool.

    Attributes:
        max_restarts: limit for one worker within `window_seconds`, and for restarts in a row without a step between
            them. After one more failure the worker's environments are disabled and their rows are never valid again. 0
            stops the pool at the first death.
        window_seconds: time window in which restarts are counted. Restarts in a row without a step count regardless of
            time.
        max_backoff_seconds: longest delay before a restart. The delays of restarts in a row without any progress are 0,
            50 ms, 100 ms, and so on.
        step_timeout_seconds: time limit of a step, including resets in it, or of an action of a worker's own policy. A
            worker over the limit prints its stack, is killed and restarted.
        start_timeout_seconds: time limit until a worker's first observation, including replayed episodes.
        min_alive_fraction: smallest fraction of working rows; with fewer the pool stops.
        bad_env_output: reaction to an environment that raises or violates its spaces. "raise" stops the pool.
            "drop_episode" drops the episode and makes a new environment, at most `max_restarts` times. Then the
            environment's rows are disabled until another process replaces the worker. It steps and validates
            environments one by one, which is slower.
        keep_spare: keeps a pre-forked process with the environment's imports from the first death on, so that
            replacements start sooner. It makes one environment and closes it.
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


@dataclasses.dataclass(frozen=True)
class PoolOptions:
    """Position of a pool's rows in a run, and options for its workers.

    Attributes:
        run_seed: derives a seed for every episode of every row; None seeds as Gymnasium does.
        keep_infos: makes `infos` available; costs a pickle for every step with non-empty infos.
        verify_every: number of steps whose values (finite, in range) are validated together, at the latest when their
            slot is full. 1 validates each step before it is published.
        first_sequence: first slot sequence; a resumed run starts at a later one.
        first_row: index in the run of this pool's first row, for seeds and messages.
        cores: cores that workers are pinned to in turn, out of those this process may use; () leaves it to the kernel.
        supervision: options for failing workers and environments.
        journal: "MODULE:DIRECTORY" of a journal of every step (`envpool_bridge.faults.journal`); "" for no journal.
        stages: stage of resets in each of the first slots, and after them; () for the spec's.
    """

    run_seed: int | None = None
    keep_infos: bool = False
    verify_every: int = 16  # a check of one step costs as much as one of sixteen
    first_sequence: int = 0
    first_row: int = 0
    cores: tuple[int, ...] = ()
    supervision: SupervisorOptions = dataclasses.field(default_factory=SupervisorOptions)
    journal: str = ""
    stages: tuple[int, ...] = ()


_FIRST_BACKOFF_SECONDS = 0.05


class RestartBudget:
    """Budget of restarts within a time window and in a row, with the delay before each. Single-threaded.

    Args:
        max_restarts: Largest number of restarts, as in SupervisorOptions.
        window_seconds: Window seconds, as in SupervisorOptions.
        max_backoff_seconds: Longest pause before a restart, as in SupervisorOptions.

    Attributes:
        total: number of restarts granted.
    """

    def __init__(self, max_restarts: int, window_seconds: float, max_backoff_seconds: float = 0.0) -> None:
        self.total = 0
        self._max, self._window, self._max_backoff = max_restarts, window_seconds, max_backoff_seconds
        self._granted: deque[float] = deque()
        self._in_vain = 0  # restarts in a row without progress

    def grant(self, now: float, made_progress: bool) -> float | None:
        """Returns the seconds to wait before the next restart, or None if the budget is exhausted.

        Args:
            now: seconds of the monotonic clock.
            made_progress: whether the restarted part did useful work since its last start.
        """
        while self._granted and self._granted[0] <= now - self._window:
            self._granted.popleft()
        self._in_vain = 0 if made_progress else self._in_vain + 1
        # Restarts in vain are limited separately, because one of them may outlast the window.
        if len(self._granted) >= self._max or self._in_vain > self._max:
            return None
        self._granted.append(now)
        self.total += 1
        if self._in_vain < 2:
            return 0.0
        return min(self._max_backoff, _FIRST_BACKOFF_SECONDS * 2.0 ** (self._in_vain - 2))
