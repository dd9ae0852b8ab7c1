"""Recovery of a dead worker's rows: its successor marks one step as broken and ends the episodes.

Everything that the dead worker published remains valid. The step in progress is broken: `valid=False`, reward 0, and
the first observation of a new episode. An episode in progress ends as truncated at its last step, if that step is in
the same slot. The previous slot may be with the learner already, which bootstraps at a slot's end anyway. `truncated`
at the broken, invalid step marks an episode that was cut, to distinguish it from one that ended regularly.
"""

from functools import partial
from time import monotonic_ns
from typing import Any

import numpy as np

from envpool_bridge.envs.protocol import EnvRows, EpisodeReset, FirstRows, ResetRequest, StepRows
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.shm.slots import SlotViews, starts_of_envs
from envpool_bridge.shm.worker_board import ProgressCounters, WorkerBoard
from envpool_bridge.spec.tree import Tree, map_leaves, take, write


class Recovery:
    """Record of a worker's parts before its start. Process-safety: used by the worker, which writes only its own columns.

    Args:
        worker: index of the worker.
        shape: shape of the pool.
        slots: all slots.
        progress: counters.
        board: recovery data of the workers.
        rows_per_env: Rows of each environment of the spec.
    """

    def __init__(
        self,
        worker: int,
        shape: PoolShape,
        slots: list[SlotViews],
        progress: ProgressCounters,
        board: WorkerBoard,
        rows_per_env: int,
    ) -> None:
        self._worker, self._shape, self._slots, self._rows_per_env = worker, shape, slots, rows_per_env
        self._progress, self._board = progress, board
        self._has_stepped = False

    def place(self, part: int) -> tuple[int, int | None]:
        """Returns the step of the part's newest observation, and the sequence whose slot must be opened for it, or None.

        If there is such a sequence, the slot of the previous step is full and committed.
        """
        length = self._shape.rollout_length
        step, committed = self._progress.observed(part) - 1, self._progress.committed(part)
        return (step + 1, committed) if committed * length == step + 1 else (step, None)

    def newest_observation(self, part: int) -> Tree:
        """Returns a copy of the part's last observation, [R, ...] a leaf."""
        step, opening = self.place(part)
        sequence, t = divmod(step, self._shape.rollout_length)
        if opening is not None:
            sequence, t = sequence - 1, self._shape.rollout_length
        slot = self._slots[sequence % self._shape.num_slots]
        return map_leaves(np.copy, take(slot.observation, (t, self._shape.part_rows(part))))

    def next_episodes(self, part: int, step: int) -> tuple[int, ...]:
        """Returns, for each row of the part, the episode after the one at `step`."""
        sequence, t = divmod(step, self._shape.rollout_length)
        slot = self._slots[sequence % self._shape.num_slots]
        started = starts_of_envs(slot.is_first[1 : t + 1, self._shape.part_rows(part)], self._rows_per_env)
        return tuple((self._board.episodes(part, sequence) + started.sum(0) + 1).tolist())

    def cut_episodes(self, part: int, step: int, rows: slice = slice(None)) -> None:
        """Ends the episodes in progress at the broken step `step`, and counts them.

        Args:
            part: part of the rows.
            step: the broken step; its other fields are already written.
            rows: broken rows of the part.
        """
        sequence, t = divmod(step, self._shape.rollout_length)
        slot = self._slots[sequence % self._shape.num_slots]
        columns = range(self._shape.num_rows)[self._shape.part_rows(part)][rows]
        here = slice(columns.start, columns.stop)
        under_way = self._under_way(slot, step, t, here)
        if t > 0:
            slot.truncated[t - 1, here] |= under_way
        slot.truncated[t, here] = under_way
        self._board.count_cut(self._worker, int(under_way.sum()))

    def record_stepped(self) -> None:
        """Records the first step of this process, if it replaces a dead worker."""
        if not self._has_stepped:
            self._has_stepped = True
            self._board.record_stepped(self._worker, monotonic_ns())

    def _under_way(self, slot: SlotViews, step: int, t: int, columns: slice) -> np.ndarray:
        """Returns the rows with an episode of at least one step that had not ended before `step`, [R] bool."""
        if t == 0 and (step == self._progress.first_step or self._shape.num_slots == 1):
            return ~slot.is_first[0, columns]  # the previous step is unknown
        if t == 0:
            before = step // self._shape.rollout_length - 1
            slot, t = self._slots[before % self._shape.num_slots], self._shape.rollout_length
        ended = slot.terminated[t - 1, columns] | slot.truncated[t - 1, columns]
        return slot.valid[t - 1, columns] & ~ended


class BrokenStep:
    """Replacement of a part's rows until their first step, which resets them whatever the request.

    Implements the part of `EnvRows` that a started part needs.

    Args:
        owner: a worker's Part; its `rows` are restored after the first step.
        rows: the replaced rows.
        recovery: Recovery of the worker.
    """

    def __init__(self, owner: Any, rows: EnvRows, recovery: Recovery) -> None:
        self._owner, self._rows, self._recovery = owner, rows, recovery
        self.num_rows = rows.num_rows
        self.infos: list[dict[str, Any]] = []

    def step(self, action: Tree, out: StepRows) -> None:
        """Resets every row; the action was chosen for a lost episode and is ignored."""
        del action
        owner = self._owner
        episodes = self._recovery.next_episodes(owner.part, owner.step)
        out.prepare()  # a dead worker may have written a part of it
        self._rows.reset(EpisodeReset(episodes, (None,) * self.num_rows), out)
        self._recovery.cut_episodes(owner.part, owner.step)
        owner.rows = self._rows
        self._recovery.record_stepped()

    def reset(self, request: ResetRequest, out: FirstRows | StepRows) -> None:
        self._rows.reset(request, out)

    def verify(self, observation: Tree, reward: np.ndarray) -> None:
        self._rows.verify(observation, reward)

    def close(self) -> None:
        self._rows.close()


class DisabledRows:
    """Rows whose environment is no longer stepped: never valid, with a constant observation.

    Implements `EnvRows`. Every observation starts an episode, so that recurrent policies keep no state of it.

    Args:
        num_rows: number of rows.
        observation: the constant observation, [R, ...] a leaf; a published one is safe input for a policy.
    """

    def __init__(self, num_rows: int, observation: Tree) -> None:
        self.num_rows = num_rows
        self.infos: list[dict[str, Any]] = []
        self._observation = observation

    def reset(self, request: ResetRequest, out: FirstRows | StepRows) -> None:
        """Writes the constant observation."""
        del request
        write(out.observation, self._observation)
        out.is_first.fill(True)
        if isinstance(out, StepRows):
            out.mark_reset()

    def step(self, action: Tree, out: StepRows) -> None:
        """Writes the constant observation and ignores the action."""
        del action
        write(out.observation, self._observation)
        out.mark_reset()

    def verify(self, observation: Tree, reward: np.ndarray) -> None: ...

    def close(self) -> None: ...


def rows_of_step(out: StepRows, rows: slice) -> StepRows:
    """Returns some of the rows of a step."""
    return StepRows(
        observation=take(out.observation, rows),
        is_first=out.is_first[rows],
        reward=out.reward[rows],
        terminated=out.terminated[rows],
        truncated=out.truncated[rows],
        valid=out.valid[rows],
        infos={name: values[rows] for name, values in out.infos.items()},
    )


def rows_of_first(out: FirstRows, rows: slice) -> FirstRows:
    """Returns some of the rows of a first observation."""
    history = None if out.history is None else map_leaves(partial(_columns, rows), out.history)
    return FirstRows(take(out.observation, rows), out.is_first[rows], history)


def _columns(rows: slice, array: np.ndarray) -> np.ndarray:
    return array[:, rows]
