"""Episode returns and lengths from trajectories. Numpy only."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from envpool_bridge.shm.slots import SlotViews
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tasks import assign_tasks

WINDOW = 100  # episodes in a mean
_MOST_AGENTS = 16  # with means of their own


class Episode(NamedTuple):
    """A finished episode.

    Attributes:
        return_: sum of its rewards, in environment reward units.
        length: env steps.
    """

    return_: float
    length: int


class RowGroups(NamedTuple):
    """Rows whose episodes have means of their own: those of one task, or of one agent.

    Attributes:
        names: Names of the groups; () for none.
        of_row: [B] int, index of each row's group; None without groups.
    """

    names: tuple[str, ...] = ()
    of_row: np.ndarray | None = None


NO_GROUPS = RowGroups()


def row_groups(spec: EnvSpec, num_rows: int, first_row: int = 0) -> RowGroups:
    """Returns the groups of rows: tasks if rows differ, otherwise agents, or their kinds if there are more than 16.

    Args:
        spec: Specification of the rows. The kind of an agent is its name without its number.
        num_rows: number of rows.
        first_row: number of the first of them in the run.
    """
    size = spec.rows_per_env
    if spec.tasks:
        tasks = np.repeat(assign_tasks(spec.tasks, -(-(first_row + num_rows) // size)), size)
        return RowGroups(tuple(task.name for task in spec.tasks), tasks[first_row : first_row + num_rows])
    if not spec.agents:
        return NO_GROUPS
    agents = [agent.name for agent in spec.agents]
    if len(agents) > _MOST_AGENTS:
        agents = [name.rstrip("_0123456789") for name in agents]
    names = tuple(dict.fromkeys(agents))
    group_of_agent = np.array([names.index(name) for name in agents])
    return RowGroups(names, group_of_agent[np.arange(first_row, first_row + num_rows) % size])


class EpisodeTracker:
    """Running sums of B rows, and the last finished episodes.

    Args:
        num_rows: B.
        info_fields: numbers in the infos to average; see EnvSpec.
        groups: rows that also have means of their own.

    Attributes:
        num_episodes: episodes finished so far.
        return_sum: sum of their returns.
        finished: episodes that finished since they were last taken; None while nothing takes them.
    """

    def __init__(
        self,
        num_rows: int,
        info_fields: Sequence[str] = (),
        groups: RowGroups = NO_GROUPS,
    ) -> None:
        self.finished: list[Episode] | None = None
        self.num_episodes = 0
        self.return_sum = 0.0
        self._fields, self._groups = tuple(info_fields), groups
        self._return = np.zeros(num_rows, np.float64)
        self._length = np.zeros(num_rows, np.int64)
        # Monotonic seconds; NaN for episodes that started before this process.
        self._started_at = np.full(num_rows, np.nan)
        # Return, length, infos, group; enough of them for a mean of each group.
        self._recent: deque[tuple[float, ...]] = deque(maxlen=WINDOW * max(1, len(groups.names)))
        self._seconds: deque[float] = deque(maxlen=WINDOW)

    def observe(self, slot: SlotViews) -> None:
        """Adds a full slot. Episodes truncated by a failure are excluded from all means."""
        cut = slot.truncated & ~slot.valid  # the failed step; the step before it is marked `truncated`
        ended = (slot.terminated | slot.truncated) & ~cut
        ended[:-1] &= ~cut[1:]
        part_of_row = np.arange(len(self._return)) * slot.stepped_at.shape[1] // len(self._return)
        # A row that could not be replayed starts an episode with the first observation after a resume.
        self._return[slot.is_first[0]] = 0.0
        self._length[slot.is_first[0]] = 0
        for t in range(slot.reward.shape[0]):
            self._return += np.where(slot.valid[t], slot.reward[t], 0.0)
            self._length += slot.valid[t]
            self._return[cut[t]] = 0.0
            self._length[cut[t]] = 0
            if ended[t].any():
                self._finish(np.flatnonzero(ended[t]), slot, t, slot.stepped_at[t, part_of_row])
            started = slot.is_first[t + 1]
            if started.any():
                self._started_at[started] = slot.stepped_at[t, part_of_row[started]]

    def _finish(self, rows: np.ndarray, slot: SlotViews, t: int, now: np.ndarray) -> None:
        self._seconds.extend((now[rows] - self._started_at[rows]).tolist())
        columns = [self._return[rows], self._length[rows]]
        columns += [slot.infos[name][t, rows] for name in self._fields]
        columns += [] if self._groups.of_row is None else [self._groups.of_row[rows]]
        self._recent.extend(tuple(row) for row in np.stack(columns, axis=1).tolist())
        if self.finished is not None:
            self.finished += map(Episode, self._return[rows].tolist(), self._length[rows].tolist())
        self.num_episodes += len(rows)
        self.return_sum += float(self._return[rows].sum())
        self._return[rows] = 0.0
        self._length[rows] = 0

    def metrics(self) -> dict[str, float]:
        """Returns means over the last 100 finished episodes, and totals over all; empty before the first.

        Returns are in environment reward units, lengths in env steps. Info fields are those of an episode's last step, in the
        environment's own units. Means of a group are over its last 100 episodes among the last
        100 of each group together.
        """
        if not self._recent:
            return {}
        recent = list(self._recent)[-WINDOW:]
        returns, lengths, *infos = zip(*recent, strict=True)
        metrics = {
            "episode/return_mean": float(np.mean(returns)),
            "episode/return_max": float(np.max(returns)),
            "episode/length_mean": float(np.mean(lengths)),
            "episode/count": float(self.num_episodes),
            "episode/return_sum": self.return_sum,
        }
        for name, values in zip(self._fields, infos, strict=False):  # the last column may be the group
            if not np.isnan(values).all():
                metrics[f"episode/info/{name}_mean"] = float(np.nanmean(values))
        return metrics | self._group_metrics()

    def _group_metrics(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for group, name in enumerate(self._groups.names):
            own = [episode for episode in self._recent if episode[-1] == group][-WINDOW:]
            if own:
                metrics[f"episode/return/{name}"] = float(np.mean([episode[0] for episode in own]))
                metrics[f"episode/length/{name}"] = float(np.mean([episode[1] for episode in own]))
        return metrics

    def timings(self) -> dict[str, float]:
        """Returns mean wall seconds of the last 100 finished episodes that started in this process."""
        known = [seconds for seconds in self._seconds if not np.isnan(seconds)]
        return {"episode/seconds_mean": float(np.mean(known))} if known else {}

    @property
    def _num_columns(self) -> int:
        return 2 + len(self._fields) + (self._groups.of_row is not None)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Returns all state for a checkpoint, except times, which differ from run to run."""
        recent = np.array([list(episode) for episode in self._recent], np.float64).reshape(-1, self._num_columns)
        return {
            "return": self._return.copy(),
            "length": self._length.copy(),
            "recent": recent,
            "count": np.array(self.num_episodes),
            "return_sum": np.array(self.return_sum),
        }

    def fits(self, arrays: dict[str, np.ndarray]) -> bool:
        """Returns whether `arrays` come from `to_arrays` for the same number of rows and info fields."""
        forms = {name: value.shape for name, value in arrays.items()}
        rows, recent = (len(self._return),), forms.get("recent", ())
        has_rows = forms.get("return") == forms.get("length") == rows and "return_sum" in forms
        return has_rows and recent[1:] == (self._num_columns,)

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Continues from `to_arrays`."""
        self._return, self._length = arrays["return"].copy(), arrays["length"].copy()
        self._recent.extend(tuple(row) for row in arrays["recent"].tolist())
        self.num_episodes, self.return_sum = int(arrays["count"]), float(arrays["return_sum"])


class EpisodeTotals:
    """Finished episodes of which only sums by row are known, because the rows are stepped and summed on a device.

    It replaces `EpisodeTracker` in plans without slots on the host, with the same metrics. Means are over the newest totals
    with at least 100 episodes together, or over all while there are fewer.

    Args:
        groups: rows that also have means of their own.
    """

    def __init__(self, groups: RowGroups = NO_GROUPS) -> None:
        self.num_episodes = 0
        self.return_sum = 0.0
        self._groups = groups
        # Count, return sum, largest return, length sum; of all rows, then of each group.
        self._recent: list[deque[tuple[float, ...]]] = [deque() for _ in range(1 + len(groups.names))]

    def add_rows(
        self, count: np.ndarray, return_sum: np.ndarray, return_max: np.ndarray, length_sum: np.ndarray
    ) -> None:
        """Adds the finished episodes of all rows.

        Args:
            count: [B] int, number of episodes.
            return_sum: [B] sum of their returns, in environment reward units.
            return_max: [B] largest of their returns; -inf without any.
            length_sum: [B] sum of their lengths, in env steps.
        """
        sums = (count, return_sum, return_max, length_sum)
        total = self._add(0, *sums)
        self.num_episodes += int(total[0])
        self.return_sum += total[1]
        for group in range(len(self._groups.names)):
            self._add(1 + group, *(values[self._groups.of_row == group] for values in sums))

    def _add(
        self, place: int, count: np.ndarray, return_sum: np.ndarray, return_max: np.ndarray, length_sum: np.ndarray
    ) -> tuple[float, ...]:
        if not count.any():
            return (0.0, 0.0)
        sums = (value.sum(dtype=np.float64) for value in (count, return_sum, length_sum))
        episodes, returns, lengths = map(float, sums)
        recent = self._recent[place]
        recent.append((episodes, returns, float(return_max.max()), lengths))
        while sum(totals[0] for totals in recent) - recent[0][0] >= WINDOW:
            recent.popleft()
        return recent[-1]

    def metrics(self) -> dict[str, float]:
        """Returns the same metrics as `EpisodeTracker.metrics`; empty before the first episode."""
        if not self._recent[0]:
            return {}
        _, _, largest, _ = zip(*self._recent[0], strict=True)
        return_mean, length_mean = _means(self._recent[0])
        metrics = {
            "episode/return_mean": return_mean,
            "episode/return_max": max(largest),
            "episode/length_mean": length_mean,
            "episode/count": float(self.num_episodes),
            "episode/return_sum": self.return_sum,
        }
        for name, recent in zip(self._groups.names, self._recent[1:], strict=True):
            if recent:
                metrics[f"episode/return/{name}"], metrics[f"episode/length/{name}"] = _means(recent)
        return metrics

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Returns all state for a checkpoint."""
        rows = [[float(place), *totals] for place, recent in enumerate(self._recent) for totals in recent]
        return {
            "recent": np.array(rows, np.float64).reshape(-1, 5),
            "count": np.array(self.num_episodes),
            "return_sum": np.array(self.return_sum),
        }

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Continues from `to_arrays`, of totals with the same groups."""
        for recent in self._recent:
            recent.clear()
        for place, *totals in arrays["recent"].tolist():
            self._recent[int(place)].append(tuple(totals))
        self.num_episodes, self.return_sum = int(arrays["count"]), float(arrays["return_sum"])


def _means(recent: deque[tuple[float, ...]]) -> tuple[float, float]:
    """Returns mean return and mean length."""
    counts, returns, _, lengths = zip(*recent, strict=True)
    return sum(returns) / sum(counts), sum(lengths) / sum(counts)
