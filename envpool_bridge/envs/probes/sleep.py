"""An environment that takes time but no processor, to measure the cost of a slow or remote simulator to other components."""

import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from envpool_bridge.errors import UserError


class Sleep(gymnasium.Env):
    """Sleeps at every step; reward 1 in each step, truncated after a fixed number of steps.

    Observation [1] float32: the elapsed share of the episode. Two actions, without effect. A step may be started and
    waited for separately (`AsyncStep`): its sleep counts from the start.

    Args:
        milliseconds: sleep of a step; a reset does not sleep.
        episode_steps: steps of every episode.
        max_milliseconds: upper bound of a step's sleep, drawn uniformly from `milliseconds` on; None sleeps equally at
            every step.
        halves: whether `step_async` and `step_wait` are offered; otherwise only `step`.

    Raises:
        UserError: If a number is negative or inconsistent.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self,
        milliseconds: float = 5.0,
        episode_steps: int = 100,
        max_milliseconds: float | None = None,
        halves: bool = True,
    ) -> None:
        if milliseconds < 0:
            raise UserError(f"milliseconds of Sleep must not be negative: got {milliseconds}")
        if max_milliseconds is not None and max_milliseconds < milliseconds:
            raise UserError(f"max_milliseconds of Sleep must be at least {milliseconds}: got {max_milliseconds}")
        if episode_steps < 1:
            raise UserError(f"episode_steps of Sleep must be at least 1: got {episode_steps}")
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._seconds, self._episode_steps = milliseconds / 1000, episode_steps
        self._most_seconds = None if max_milliseconds is None else max_milliseconds / 1000
        self._steps = 0
        self._over_at = 0.0  # on the monotonic clock
        if not halves:
            self.step_async = None  # pyright: ignore[reportAttributeAccessIssue]  see `find_halves`

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observed(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        Sleep.step_async(self, action)
        return self.step_wait()

    def step_async(self, action: int) -> None:
        """Starts to sleep: records the end of the step."""
        most = self._most_seconds
        seconds = self._seconds if most is None else self.np_random.uniform(self._seconds, most)
        self._over_at = time.monotonic() + seconds

    def step_wait(self) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Sleeps for the rest of the step; reward 1."""
        remaining = self._over_at - time.monotonic()
        if remaining > 0:
            time.sleep(remaining)
        self._steps += 1
        return self._observed(), 1.0, False, self._steps >= self._episode_steps, {}

    def _observed(self) -> np.ndarray:
        return np.array([self._steps / self._episode_steps], np.float32)
