"""The protocol between a worker and whatever steps its environments: fill the given rows.

Episodes end as in Gymnasium's NEXT_STEP autoreset: after a step with `terminated` or `truncated`, the row's next step ignores
its action, resets the environment and writes `valid=False`, reward 0 and `is_first=True`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from envpool_bridge.specs import EnvSpec


@dataclasses.dataclass(frozen=True, slots=True)
class StepRows:
    """Where one step of R rows is written: views into a trajectory slot at step t.

    Attributes:
        observation: [R, ...], the slot's `observation[t + 1]`.
        is_first: [R] bool, the slot's `is_first[t + 1]`.
        reward: [R] float32.
        terminated: [R] bool.
        truncated: [R] bool.
        valid: [R] bool.
    """

    observation: np.ndarray
    is_first: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray


@dataclasses.dataclass(frozen=True, slots=True)
class FirstRows:
    """Where the first observations of R rows are written: `observation` [R, ...] and `is_first` [R]."""

    observation: np.ndarray
    is_first: np.ndarray


@dataclasses.dataclass(frozen=True)
class GymnasiumReset:
    """A reset as `gymnasium.vector.VectorEnv.reset` means it: seeds as given, later episodes unseeded."""

    seeds: tuple[int | None, ...]
    options: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class EpisodeReset:
    """A reset of a run whose episodes each have their own seed, so that any of them can be replayed.

    Attributes:
        episodes: index of the episode each row is in.
        actions: per row, [N, ...] actions to replay since that episode began, or None to begin it.
    """

    episodes: tuple[int, ...]
    actions: tuple[np.ndarray | None, ...]


ResetRequest = GymnasiumReset | EpisodeReset


class EnvRows(Protocol):
    """R rows that step together in one process."""

    num_rows: int
    infos: list[dict[str, Any]]
    """Infos of the last reset or step, one a row; filled only when asked for."""

    def reset(self, request: ResetRequest, out: FirstRows | StepRows) -> None:
        """Begins (or replays) episodes in all rows and writes their observations; into StepRows as an invalid step."""
        ...

    def step(self, action: np.ndarray, out: StepRows) -> None:
        """Steps every row with `action` [R, ...] (stored form: zero-based int32 or float32)."""
        ...

    def close(self) -> None:
        """Closes the environments; idempotent."""
        ...


class EnvSource(Protocol):
    """Makes rows; picklable, so that workers can."""

    def spec(self) -> EnvSpec:
        """What a row looks like. Raises UserError for an unknown or unsupported environment."""
        ...

    def make_rows(self, row_ids: Sequence[int], run_seed: int | None, keep_infos: bool) -> EnvRows:
        """Rows for these row ids. With `run_seed`, the seed of every episode follows from it, the row and the episode."""
        ...
