"""Protocol between a worker and the rows of environments that it steps: write results into given arrays.

Episodes end as in Gymnasium's NEXT_STEP autoreset. After a step with `terminated` or `truncated`, the row's next step
ignores its action, resets the environment and writes `valid=False`, reward 0 and `is_first=True`.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from envpool_bridge.shm.slots import SlotViews
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import Tree, map_leaves, take


@dataclasses.dataclass(frozen=True, slots=True)
class StepRows:
    """Target arrays of one step of R rows: views into a trajectory slot at step t.

    The flags are preset to those of an ordinary step (see `prepare`), so that a step writes only those that differ.

    Attributes:
        observation: [R, *stored_shape] a leaf, the slot's `observation[t + 1]`.
        is_first: [R] bool, the slot's `is_first[t + 1]`.
        reward: [R], in the spec's `reward_dtype`.
        terminated: [R] bool.
        truncated: [R] bool.
        valid: [R] bool.
        infos: [R] float32 each, by name: the spec's `info_fields`.
    """

    observation: Tree
    is_first: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    infos: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict[str, np.ndarray])

    def prepare(self) -> None:
        """Sets the flags of an ordinary step; for all steps of a slot at once where the arrays are [T, R]."""
        self.valid.fill(True)
        self.is_first.fill(False)
        self.terminated.fill(False)
        self.truncated.fill(False)
        for values in self.infos.values():
            values.fill(np.nan)

    def mark_reset(self) -> None:
        """Sets flags and reward of a step that only resets, in every row."""
        self.valid.fill(False)
        self.is_first.fill(True)
        self.terminated.fill(False)
        self.truncated.fill(False)
        self.reward.fill(0.0)


def step_rows(slot: SlotViews, t: int | slice, columns: slice = slice(None)) -> StepRows:
    """Returns the targets of step `t` of some rows in a slot; of several steps if `t` is a slice (with start and stop)."""
    after = slice(t.start + 1, t.stop + 1) if isinstance(t, slice) else t + 1
    return StepRows(
        observation=take(slot.observation, (after, columns)),
        is_first=slot.is_first[after, columns],
        reward=slot.reward[t, columns],
        terminated=slot.terminated[t, columns],
        truncated=slot.truncated[t, columns],
        valid=slot.valid[t, columns],
        infos={name: values[t, columns] for name, values in slot.infos.items()},
    )


@dataclasses.dataclass(frozen=True, slots=True)
class FirstRows:
    """Target arrays of the first observations of R rows.

    Attributes:
        observation: [R, *stored_shape] a leaf.
        is_first: [R] bool.
        history: [F-1, R, *stored_shape] for a leaf of F frames: the frames before the observation of a replayed row.
            None if no leaf has several frames.
    """

    observation: Tree
    is_first: np.ndarray
    history: Tree = None

    def begin_history(self) -> None:
        """Fills the history of every row that starts an episode with its first observation."""
        if self.history is not None:
            map_leaves(partial(_repeat_first, self.is_first), self.history, self.observation)


def _repeat_first(is_first: np.ndarray, history: np.ndarray, observation: np.ndarray) -> None:
    history[:, is_first] = observation[is_first]


def first_rows(slot: SlotViews, columns: slice = slice(None)) -> FirstRows:
    """Returns the targets of the first observations of some rows in a slot."""
    first = FirstRows(take(slot.observation, (0, columns)), slot.is_first[0, columns])
    if len(slot.is_first_frames) == len(slot.is_first):
        return first
    steps = len(slot.is_first)
    history = map_leaves(lambda frames: frames[: len(frames) - steps, columns], slot.frames)
    return dataclasses.replace(first, history=history)


@dataclasses.dataclass(frozen=True)
class GymnasiumReset:
    """Reset in the sense of `gymnasium.vector.VectorEnv.reset`: given seeds, later episodes unseeded."""

    seeds: tuple[int | None, ...]
    options: dict[str, Any] | None = None


def _report_nothing() -> None:
    """Does nothing; default of `EpisodeReset.on_step`."""


@dataclasses.dataclass(frozen=True)
class EpisodeReset:
    """Reset of a run whose episodes each have their own seed, so that any of them can be replayed.

    Attributes:
        episodes: index of each row's episode.
        actions: Actions for each row, the actions to replay since the start of that episode, [N, ...] a leaf, or None to start
            it.
        on_step: called before every replayed step.
        stages: stage or level of each row's episode; () for the one that resets have now.
    """

    episodes: tuple[int, ...]
    actions: tuple[Tree | None, ...]
    on_step: Callable[[], None] = dataclasses.field(default=_report_nothing, compare=False)
    stages: tuple[int, ...] = ()


ResetRequest = GymnasiumReset | EpisodeReset


class StagedRows(Protocol):
    """Rows whose resets have a stage or a level.

    Attributes:
        read_stage: returns the stage or level of a reset of the given row at this step; None if environments receive none.
    """

    read_stage: Callable[[int], int | None]


def reset_options(stage: int | None) -> dict[str, Any] | None:
    """Returns the options of a reset at a stage."""
    return None if stage is None else {"stage": stage}


def has_stages(spec: EnvSpec) -> bool:
    """Returns whether resets have a stage or a level."""
    return spec.stage is not None or spec.levels > 0


def initial_stage(spec: EnvSpec) -> int | None:
    """Returns the stage of resets without a sender of stages or levels, as in evaluations."""
    return None if spec.levels else spec.stage


def first_stages(spec: EnvSpec, row_ids: Iterable[int]) -> tuple[int, ...]:
    """Returns the stages of the first episodes of rows, as `EpisodeReset` takes them: levels in turn."""
    return tuple(row % spec.levels for row in row_ids) if spec.levels else ()


def reset_arguments(spec: EnvSpec, seed: int | None, stage: int | None) -> dict[str, Any]:
    """Returns the arguments of a Gymnasium reset at a stage or level; a level is the seed of environments without stages."""
    if spec.levels and spec.stage is None and stage is not None:
        return {"seed": stage, "options": None}
    return {"seed": seed, "options": reset_options(stage)}


class EnvRows(Protocol):
    """R rows that step together in one process."""

    num_rows: int
    infos: list[dict[str, Any]]
    """Infos of the last reset or step, one a row; filled only when asked for."""

    def reset(self, request: ResetRequest, out: FirstRows | StepRows) -> None:
        """Starts (or replays) episodes in all rows and writes their observations; into StepRows as an invalid step.

        For FirstRows, it also writes the history of replayed rows; the caller writes that of the others
        (`begin_history`).
        """
        ...

    def step(self, action: Tree, out: StepRows) -> None:
        """Steps every row with `action`, [R, ...] a leaf (stored form: zero-based int32 or float32).

        Types, shapes and dtypes are validated here; values by `verify`.
        """
        ...

    def verify(self, observation: Tree, reward: np.ndarray) -> None:
        """Raises on values that are not finite or out of range. One call for N steps costs a fraction of N calls.

        Args:
            observation: [N, R, *stored_shape] a leaf, written by the last N steps.
            reward: [N, R], likewise.

        Raises:
            BadEnvOutputError: names the row, the step and the field.
        """
        ...

    def close(self) -> None:
        """Closes the environments; idempotent."""
        ...


@runtime_checkable
class RestingRows(Protocol):
    """Rows that can rest after some episodes: what they write afterwards costs nothing and has no meaning."""

    num_episodes: Sequence[int]
    """Episodes after which each row rests, set before the reset; empty if none does."""


class EnvSource(Protocol):
    """Maker of rows; picklable, so that workers can make them."""

    def spec(self) -> EnvSpec:
        """Returns the spec of a row. Raises UserError for an unknown or unsupported environment."""
        ...

    def make_rows(self, row_ids: Sequence[int], run_seed: int | None, keep_infos: bool) -> EnvRows:
        """Makes rows for these row ids. With `run_seed`, the seed of every episode follows from it, the row and the episode."""
        ...
