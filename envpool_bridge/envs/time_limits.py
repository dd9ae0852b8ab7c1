"""Time limits of all rows together, in place of a `TimeLimit` wrapper around each environment."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
from gymnasium.wrappers import OrderEnforcing, TimeLimit

NEVER = 1 << 62
"""Steps that no episode has."""


def has_time_limit(env: gymnasium.Env) -> bool:
    """Returns whether a TimeLimit ends the environment's episodes. Limits inside an environment are not seen."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, TimeLimit):
            return True
        env = env.env
    return False


class TimeLimits:
    """Step functions of environments without Gymnasium's outermost wrappers, and the truncation that those would do.

    `gymnasium.make` puts a TimeLimit and an OrderEnforcing around every environment: two Python calls in each step, a
    tenth of a CartPole step. The first is a count, kept here for all rows at once. The second asserts that there was a
    reset, and rows are always reset first. Both wrappers still receive resets, renders and closes, which use the
    environment as it was made. Other wrappers stay in place, and so does everything below them; this includes
    subclasses of the two.

    Args:
        envs: one for each row.
        replace_wrappers: False leaves the wrappers in place, for rows that step on after the end of an episode.
    """

    def __init__(self, envs: Sequence[gymnasium.Env], replace_wrappers: bool = True) -> None:
        self._envs = list(envs)
        self._unwrap = _unwrapped if replace_wrappers else _as_made
        unwrapped = [self._unwrap(env) for env in envs]
        self.inner = [env for env, _ in unwrapped]  # environments whose steps are called
        self.step_functions: list[Callable[[Any], Any]] = [env.step for env in self.inner]
        self.limits = [limit for _, limit in unwrapped]  # steps of an episode
        self._last_steps = [NEVER] * len(unwrapped)  # of the rows' episodes, in counted steps of all rows
        self._next = NEVER  # the first step at which an episode reaches its limit

    def begin(self, row: int, num_steps: int, limit: int | None = None) -> None:
        """Starts an episode of the row after `num_steps` steps of all rows; None is the row's own limit."""
        last = num_steps + (self.limits[row] if limit is None else limit)
        self._last_steps[row] = last
        self._next = min(self._next, last)

    def truncate(self, truncated: tuple[Any, ...], num_steps: int) -> tuple[Any, ...]:
        """Returns the rows' `truncated` flags of a step.

        Args:
            truncated: flags that the environments returned.
            num_steps: number of steps of all rows, including this one.
        """
        if num_steps < self._next:
            return truncated
        flags = [flag if num_steps < last else True for flag, last in zip(truncated, self._last_steps, strict=True)]
        self._next = min((last for last in self._last_steps if last > num_steps), default=NEVER)
        return tuple(flags)

    def read_step(self, row: int) -> Callable[[Any], Any]:
        """Returns the row's step function, read again: a reset, or who sets attributes, may have chosen another one."""
        step = self.inner[row].step  # a new object each time, while `AsyncStep` requires the one that it was made with
        if step != self.step_functions[row]:
            self.step_functions[row] = step
        return self.step_functions[row]

    def export_counts(self, row: int, num_steps: int) -> None:
        """Writes the count of the row's episode into the replaced wrappers, before anything reads their attributes."""
        for wrapper in self._replaced(row):
            wrapper._elapsed_steps = num_steps - (self._last_steps[row] - self.limits[row])

    def import_counts(self, row: int, num_steps: int) -> None:
        """Reads the row's limit and step function again, after attributes of the environment may have been set."""
        self.inner[row], self.limits[row] = self._unwrap(self._envs[row])
        self.read_step(row)
        lasts = [num_steps + _limit(wrapper, NEVER) - wrapper._elapsed_steps for wrapper in self._replaced(row)]
        self.begin(row, min(lasts, default=NEVER) - self.limits[row])

    def _replaced(self, row: int) -> list[Any]:
        """Returns the TimeLimits of a row in its episode that are replaced."""
        env: Any = self._envs[row]
        limits: list[Any] = []
        while env is not self.inner[row]:
            if isinstance(env, TimeLimit):
                limits.append(env)
            env = env.env
        return limits if self._last_steps[row] < NEVER else []


def _as_made(env: gymnasium.Env) -> tuple[gymnasium.Env, int]:
    return env, NEVER


def _limit(wrapper: Any, default: int | None) -> Any:
    return getattr(wrapper, "_max_episode_steps", default)


def _unwrapped(env: gymnasium.Env) -> tuple[gymnasium.Env, int]:
    """Returns the environment below the replaced wrappers, and the limit that they set."""
    limit = NEVER
    while type(env) in (TimeLimit, OrderEnforcing) and "step" not in vars(env):
        if isinstance(env, TimeLimit):
            own = _limit(env, None)
            if not isinstance(own, int):  # another version of Gymnasium stores it elsewhere
                break
            limit = min(limit, own)
        env = env.env  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    return env, limit
