"""How a worker goes on where another one died: which step is broken, and how its rows' episodes end.

What a dead worker had published stands. The step it was at is broken: `valid=False`, reward 0, a new episode's first observation.
An episode that was under way ends as truncated at its last step, where that step is in the same slot (a slot before may be with
the learner already, which bootstraps at a slot's end anyway). `truncated` at the broken step itself, which is not valid, marks an
episode that was cut, so that nobody takes it for one that came to its end.
"""

from functools import partial
from time import monotonic_ns
from typing import Any

import numpy as np

from envpool_bridge.envs.protocol import EnvRows, EpisodeReset, FirstRows, ResetRequest, StepRows
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.shm.slots import SlotViews
from envpool_bridge.shm.worker_board import Progress, WorkerBoard
from envpool_bridge.spec.tree import Tree, map_leaves, take, write


class Recovery:
    """What a worker knows of its parts' past. Process-safety: the worker's, which writes its own columns only."""

    def __init__(
        self, worker: int, shape: PoolShape, slots: list[SlotViews], progress: Progress, board: WorkerBoard
    ) -> None:
        """Of worker `worker`."""
        self._worker, self._shape, self._slots = worker, shape, slots
        self._progress, self._board = progress, board
        self._has_stepped = False

    def place(self, part: int) -> tuple[int, int | None]:
        """Where the part stands: the step of its newest observation, and the sequence whose slot is to be opened for it.

        The slot of the step before is full, and committed, if there is such a sequence.
        """
        length = self._shape.rollout_length
        step, committed = self._progress.observed(part) - 1, self._progress.committed(part)
        return (step + 1, committed) if committed * length == step + 1 else (step, None)

    def newest_observation(self, part: int) -> Tree:
        """[R, ...] a leaf, a copy of what the part's rows showed last."""
        step, opening = self.place(part)
        sequence, t = divmod(step, self._shape.rollout_length)
        if opening is not None:
            sequence, t = sequence - 1, self._shape.rollout_length
        slot = self._slots[sequence % self._shape.num_slots]
        return map_leaves(np.copy, take(slot.observation, (t, self._shape.part_rows(part))))

    def next_episodes(self, part: int, step: int) -> tuple[int, ...]:
        """The episode after the one that each row of the part is in at `step`."""
        sequence, t = divmod(step, self._shape.rollout_length)
        slot = self._slots[sequence % self._shape.num_slots]
        begun = slot.is_first[1 : t + 1, self._shape.part_rows(part)].sum(0)
        return tuple((self._board.episodes(part, sequence) + begun + 1).tolist())

    def cut_episodes(self, part: int, step: int, rows: slice = slice(None)) -> None:
        """Ends the episodes that were under way at the broken step `step`, and counts them.

        Args:
            part: whose rows.
            step: that is broken; its other fields are written.
            rows: of the part, that are broken.
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

    def note_stepped(self) -> None:
        """Notes that a worker that follows a dead one has made a step of its rows, the first of this process."""
        if not self._has_stepped:
            self._has_stepped = True
            self._board.note_stepped(self._worker, monotonic_ns())

    def _under_way(self, slot: SlotViews, step: int, t: int, columns: slice) -> np.ndarray:
        """[R] bool: rows with an episode of at least one step, that had not ended before `step`."""
        if t == 0 and (step == self._progress.first_step or self._shape.num_slots == 1):
            return ~slot.is_first[0, columns]  # of the step before nothing is known
        if t == 0:
            before = step // self._shape.rollout_length - 1
            slot, t = self._slots[before % self._shape.num_slots], self._shape.rollout_length
        ended = slot.terminated[t - 1, columns] | slot.truncated[t - 1, columns]
        return slot.valid[t - 1, columns] & ~ended


class BrokenStep:
    """Stands in for a part's rows until their first step: whatever was asked for, they begin new episodes instead.

    Keeps the protocol `EnvRows` as far as a part that has begun needs it.
    """

    def __init__(self, owner: Any, rows: EnvRows, recovery: Recovery) -> None:
        """In `owner`, a worker's Part, until `rows` have begun; `owner.rows` is given back to them then."""
        self._owner, self._rows, self._recovery = owner, rows, recovery
        self.num_rows = rows.num_rows
        self.infos: list[dict[str, Any]] = []

    def step(self, action: Tree, out: StepRows) -> None:
        """Resets every row; the action, chosen for an episode that is gone, is ignored."""
        del action
        owner = self._owner
        episodes = self._recovery.next_episodes(owner.part, owner.step)
        out.prepare()  # a death may have left some of it written
        self._rows.reset(EpisodeReset(episodes, (None,) * self.num_rows), out)
        self._recovery.cut_episodes(owner.part, owner.step)
        owner.rows = self._rows
        self._recovery.note_stepped()

    def reset(self, request: ResetRequest, out: FirstRows | StepRows) -> None:
        """As the rows do."""
        self._rows.reset(request, out)

    def verify(self, observation: Tree, reward: np.ndarray) -> None:
        """As the rows do."""
        self._rows.verify(observation, reward)

    def close(self) -> None:
        """As the rows do."""
        self._rows.close()


class DisabledRows:
    """Rows whose environment is not stepped any more: never valid, their last observation for ever.

    Keeps the protocol `EnvRows`. Every observation begins an episode, so that no policy remembers anything of it.
    """

    def __init__(self, num_rows: int, observation: Tree) -> None:
        """Shows `observation`, [R, ...] a leaf: one that was shown before is one that a policy can act on."""
        self.num_rows = num_rows
        self.infos: list[dict[str, Any]] = []
        self._observation = observation

    def reset(self, request: ResetRequest, out: FirstRows | StepRows) -> None:
        """Shows what it always shows."""
        del request
        write(out.observation, self._observation)
        out.is_first.fill(True)
        if isinstance(out, StepRows):
            out.mark_reset()

    def step(self, action: Tree, out: StepRows) -> None:
        """Does nothing but show what it always shows."""
        del action
        write(out.observation, self._observation)
        out.mark_reset()

    def verify(self, observation: Tree, reward: np.ndarray) -> None:
        """Nothing to refuse."""

    def close(self) -> None:
        """Nothing to close."""


def rows_of_step(out: StepRows, rows: slice) -> StepRows:
    """Some of the rows of a step."""
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
    """Some of the rows of a first observation."""
    history = None if out.history is None else map_leaves(partial(_columns, rows), out.history)
    return FirstRows(take(out.observation, rows), out.is_first[rows], history)


def _columns(rows: slice, array: np.ndarray) -> np.ndarray:
    return array[:, rows]
