"""Time limits of all rows together, in place of a `TimeLimit` wrapper around each."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
from gymnasium.wrappers import OrderEnforcing, TimeLimit

_NEVER = 1 << 62  # steps


class TimeLimits:
    """Steps environments without Gymnasium's outermost wrappers, and truncates episodes where they would.

    `gymnasium.make` puts a TimeLimit and an OrderEnforcing around every environment: two Python calls a step, a tenth of a
    CartPole step. The first is a count, kept here for all rows at once; the second asks whether there was a reset, and rows are
    always reset first. Both still see resets, renders and closes, which go through the environment as it was made. Other
    wrappers, those that derive from these included, stay where they are, and so does all that is below them.
    """

    def __init__(self, envs: Sequence[gymnasium.Env]) -> None:
        """Looks through the wrappers of `envs`, one a row."""
        found = [_unwrapped(env) for env in envs]
        self.inner = [env for env, _ in found]  # whose steps are called
        self.step_functions: list[Callable[[Any], Any]] = [env.step for env in self.inner]
        self.limits = [limit for _, limit in found]  # steps an episode may have
        self._last_steps = [_NEVER] * len(found)  # of the rows' episodes, as steps of all rows are counted
        self._next = _NEVER  # no episode reaches its limit before it

    def begin(self, row: int, num_steps: int) -> None:
        """An episode of the row begins when `num_steps` steps of all rows have been made."""
        last = num_steps + self.limits[row]
        self._last_steps[row] = last
        self._next = min(self._next, last)

    def truncate(self, truncated: tuple[Any, ...], num_steps: int) -> tuple[Any, ...]:
        """What the rows' `truncated` flags are at a step.

        Args:
            truncated: what the environments returned.
            num_steps: of all rows, this one included.
        """
        if num_steps < self._next:
            return truncated
        flags = [flag if num_steps < last else True for flag, last in zip(truncated, self._last_steps, strict=True)]
        self._next = min((last for last in self._last_steps if last > num_steps), default=_NEVER)
        return tuple(flags)


def _unwrapped(env: gymnasium.Env) -> tuple[gymnasium.Env, int]:
    """The environment below the wrappers that are replaced, and the limit that they set."""
    limit = _NEVER
    while type(env) in (TimeLimit, OrderEnforcing) and "step" not in vars(env):
        if isinstance(env, TimeLimit):
            own = getattr(env, "_max_episode_steps", None)
            if not isinstance(own, int):  # another version of Gymnasium keeps it elsewhere
                break
            limit = min(limit, own)
        env = env.env  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    return env, limit
