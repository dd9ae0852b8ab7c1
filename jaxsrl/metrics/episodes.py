"""Episode returns and lengths from trajectories. Numpy only."""

from collections import deque

import numpy as np

from envpool_bridge.layout import SlotViews

WINDOW = 100  # episodes that a mean is taken over


class EpisodeTracker:
    """Running sums of B rows, and the last finished episodes.

    Attributes:
        num_episodes: finished so far.
    """

    def __init__(self, num_rows: int) -> None:
        """No episode yet."""
        self.num_episodes = 0
        self._return = np.zeros(num_rows, np.float64)
        self._length = np.zeros(num_rows, np.int64)
        self._recent: deque[tuple[float, int]] = deque(maxlen=WINDOW)

    def observe(self, slot: SlotViews) -> None:
        """Takes in a full slot."""
        ended = slot.terminated | slot.truncated
        for t in range(slot.reward.shape[0]):
            self._return += slot.reward[t]
            self._length += slot.valid[t]
            if ended[t].any():
                rows = np.flatnonzero(ended[t])
                self._recent.extend(zip(self._return[rows].tolist(), self._length[rows].tolist(), strict=True))
                self.num_episodes += len(rows)
                self._return[rows] = 0.0
                self._length[rows] = 0

    def metrics(self) -> dict[str, float]:
        """Means over the last 100 finished episodes, in environment reward units and env steps; empty before the first."""
        if not self._recent:
            return {}
        returns, lengths = zip(*self._recent, strict=True)
        return {
            "episode/return_mean": float(np.mean(returns)),
            "episode/return_max": float(np.max(returns)),
            "episode/length_mean": float(np.mean(lengths)),
            "episode/count": float(self.num_episodes),
        }

    def to_arrays(self) -> dict[str, np.ndarray]:
        """All state, for a checkpoint."""
        recent = np.array([list(pair) for pair in self._recent], np.float64).reshape(-1, 2)
        return {
            "return": self._return.copy(),
            "length": self._length.copy(),
            "recent": recent,
            "count": np.array(self.num_episodes),
        }

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Continues from `to_arrays`."""
        self._return, self._length = arrays["return"].copy(), arrays["length"].copy()
        self._recent.extend((float(value), int(length)) for value, length in arrays["recent"])
        self.num_episodes = int(arrays["count"])
