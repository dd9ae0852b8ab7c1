"""Replacement environments for a lost host. Their first step is invalid, as after a worker's death.

The last slot that the learner has from the lost host stands. The next slot begins with that slot's last observation; its first
step is not valid and begins new episodes (`envpool_bridge.worker.recovery` says why so).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from envpool_bridge.envs.protocol import EnvRows, EnvSource, EpisodeReset, FirstRows, ResetRequest, StepRows, first_rows
from envpool_bridge.shm.layout import SlotLayout, make_layout
from envpool_bridge.shm.slots import SlotAccess, SlotViews, allocate_slots
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import Tree, map_leaves, take, write


@dataclasses.dataclass(frozen=True)
class LastSeen:
    """The last step of a host's rows that the learner received.

    Attributes:
        first_row: Number in the run of the host's first row.
        observation: [R, *stored_shape] a leaf.
        is_first: [R] bool.
        history: [F-1, R, *stored_shape] a leaf of F frames; None where no leaf has several.
        under_way: [R] bool, whether an episode is cut here.
    """

    first_row: int
    observation: Tree
    is_first: np.ndarray
    history: Tree
    under_way: np.ndarray


def last_seen(layout: SlotLayout, slot: SlotViews, first_row: int) -> LastSeen:
    """Returns copies of the end of a slot, as the next slot would start with them."""
    spec, shape = layout.spec, dataclasses.replace(layout.shape, num_slots=1)
    (after,) = allocate_slots(make_layout(spec, shape, {}, layout.agent_state))
    SlotAccess(layout).carry(slot, after, slice(None))
    first = first_rows(after)
    under_way = slot.valid[-1] & ~(slot.terminated[-1] | slot.truncated[-1])
    history = None if first.history is None else map_leaves(np.copy, first.history)
    return LastSeen(first_row, map_leaves(np.copy, first.observation), first.is_first.copy(), history, under_way)


@dataclasses.dataclass(frozen=True)
class FollowingSource:
    """A source whose rows show `seen` first, and begin new episodes with their first step; an EnvSource."""

    source: EnvSource
    seen: LastSeen

    def spec(self) -> EnvSpec:
        return self.source.spec()

    def make_rows(self, row_ids: Sequence[int], run_seed: int | None, keep_infos: bool) -> EnvRows:
        """Returns rows of the source that follow others."""
        begin = row_ids[0] - self.seen.first_row
        rows = self.source.make_rows(row_ids, run_seed, keep_infos)
        return FollowingRows(rows, self.seen, slice(begin, begin + len(row_ids)))


class FollowingRows:
    """Keeps the protocol `EnvRows`."""

    def __init__(self, rows: EnvRows, seen: LastSeen, columns: slice) -> None:
        self._rows, self._seen, self._columns = rows, seen, columns
        self._next_episodes: tuple[int, ...] | None = None  # while the broken step is to come
        self.num_rows = rows.num_rows
        self.infos: list[dict[str, Any]] = []

    def reset(self, request: ResetRequest, out: FirstRows | StepRows) -> None:
        """Shows what was seen, if these rows are the first to begin here; else as the rows do."""
        if isinstance(out, StepRows) or not isinstance(request, EpisodeReset):
            self._next_episodes = None
            self._rows.reset(request, out)
            self.infos = self._rows.infos
            return
        seen, columns = self._seen, self._columns
        write(out.observation, take(seen.observation, columns))
        out.is_first[...] = seen.is_first[columns]
        if out.history is not None:
            write(out.history, map_leaves(lambda frames: frames[:, columns], seen.history))
        self._next_episodes = tuple(episode + 1 for episode in request.episodes)

    def step(self, action: Tree, out: StepRows) -> None:
        """Resets all rows in the first step and ignores its action, which was chosen for a lost episode."""
        if self._next_episodes is None:
            self._rows.step(action, out)
            self.infos = self._rows.infos
            return
        episodes, self._next_episodes = self._next_episodes, None
        out.prepare()
        self._rows.reset(EpisodeReset(episodes, (None,) * self.num_rows), out)
        self.infos = self._rows.infos
        out.truncated[...] = self._seen.under_way[self._columns]

    def verify(self, observation: Tree, reward: np.ndarray) -> None:
        self._rows.verify(observation, reward)

    def close(self) -> None:
        self._rows.close()
