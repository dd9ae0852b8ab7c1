"""Episode returns and lengths from trajectories. Numpy only."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from envpool_bridge.shm.slots import SlotViews

WINDOW = 100  # episodes in a mean


class Episode(NamedTuple):
    """A finished episode.

    Attributes:
        return_: sum of its rewards, in environment reward units.
        length: env steps.
    """

    return_: float
    length: int


class EpisodeTracker:
    """Running sums of B rows, and the last finished episodes.

    Args:
        num_rows: B.
        info_fields: numbers in the infos to average; see EnvSpec.
        tasks: names of the tasks of rows that differ.
        task_of_row: [B] int, index of each row's task; None without tasks.

    Attributes:
        num_episodes: episodes finished so far.
        return_sum: sum of their returns.
        finished: episodes that finished since they were last taken; None while nothing takes them.
    """

    def __init__(
        self,
        num_rows: int,
        info_fields: Sequence[str] = (),
        tasks: Sequence[str] = (),
        task_of_row: np.ndarray | None = None,
    ) -> None:
        self.finished: list[Episode] | None = None
        self.num_episodes = 0
        self.return_sum = 0.0
        self._fields, self._tasks, self._task_of_row = tuple(info_fields), tuple(tasks), task_of_row
        self._return = np.zeros(num_rows, np.float64)
        self._length = np.zeros(num_rows, np.int64)
        self._started_at = np.full(
            num_rows, np.nan
        )  # monotonic seconds; NaN for episodes that started before this process
        # Return, length, infos, task; enough of them for a mean of each task.
        self._recent: deque[tuple[float, ...]] = deque(maxlen=WINDOW * max(1, len(self._tasks)))
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
        columns += [] if self._task_of_row is None else [self._task_of_row[rows]]
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
        environment's own units. Means of a task are over its last 100 episodes among the last
        100 of each task together.
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
        for name, values in zip(self._fields, infos, strict=False):  # the last column may be the task
            if not np.isnan(values).all():
                metrics[f"episode/info/{name}_mean"] = float(np.nanmean(values))
        return metrics | self._task_metrics()

    def _task_metrics(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for task, name in enumerate(self._tasks):
            own = [episode for episode in self._recent if episode[-1] == task][-WINDOW:]
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
        return 2 + len(self._fields) + (self._task_of_row is not None)

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
    """Finished episodes of which only totals are known, because the rows are stepped and summed on a device.

    It replaces `EpisodeTracker` in plans without slots on the host, with the same metrics. Means are over the newest totals
    with at least 100 episodes together, or over all while there are fewer.
    """

    def __init__(self) -> None:
        self.num_episodes = 0
        self.return_sum = 0.0
        self._recent: deque[tuple[int, float, float, int]] = deque()

    def add_totals(self, count: int, return_sum: float, return_max: float, length_sum: int) -> None:
        """Adds `count` finished episodes.

        Args:
            count: number of episodes.
            return_sum: sum of their returns, in environment reward units.
            return_max: largest of their returns.
            length_sum: sum of their lengths, in env steps.
        """
        if not count:
            return
        self.num_episodes += count
        self.return_sum += return_sum
        self._recent.append((count, return_sum, return_max, length_sum))
        while sum(totals[0] for totals in self._recent) - self._recent[0][0] >= WINDOW:
            self._recent.popleft()

    def metrics(self) -> dict[str, float]:
        """Returns the same metrics as `EpisodeTracker.metrics`; empty before the first episode."""
        if not self._recent:
            return {}
        counts, returns, largest, lengths = zip(*self._recent, strict=True)
        return {
            "episode/return_mean": sum(returns) / sum(counts),
            "episode/return_max": max(largest),
            "episode/length_mean": sum(lengths) / sum(counts),
            "episode/count": float(self.num_episodes),
            "episode/return_sum": self.return_sum,
        }

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Returns all state for a checkpoint."""
        recent = np.array([list(totals) for totals in self._recent], np.float64).reshape(-1, 4)
        return {
            "recent": recent,
            "count": np.array(self.num_episodes),
            "return_sum": np.array(self.return_sum),
        }

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Continues from `to_arrays`."""
        self._recent = deque(
            (int(n), float(total), float(top), int(steps)) for n, total, top, steps in arrays["recent"]
        )
        self.num_episodes, self.return_sum = int(arrays["count"]), float(arrays["return_sum"])
