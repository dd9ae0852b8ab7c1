"""What every row has done since its current episode began: enough to play it again, and so to resume to the bit.

Environments cannot be saved in general, but an episode is determined by its seed and its actions. So a checkpoint holds, for
each row, which episode it is in and the actions so far; a resumed run plays them again.
"""

from collections import deque

import numpy as np

from envpool_bridge.adapters.rows import EpisodeReset
from envpool_bridge.layout import SlotViews


class EpisodeLog:
    """Episodes and actions of B rows. Fed with every slot, in order."""

    def __init__(self, num_rows: int, first_step: int, max_steps: int = 200_000) -> None:
        """Every row at the beginning of its episode 0.

        Args:
            num_rows: B.
            first_step: of the run, that the next slot begins with.
            max_steps: actions kept a row; a longer episode is not played again, its row begins a new one.
        """
        self.episodes = np.zeros(num_rows, np.int64)
        self._begins = np.full(num_rows, first_step, np.int64)  # step whose observation began the episode
        self._end = first_step
        self._max_steps = max_steps
        self._blocks: deque[tuple[int, np.ndarray]] = deque()  # (first step, actions [N, B, ...])
        self.last_observation: np.ndarray | None = None

    def observe(self, slot: SlotViews) -> None:
        """Takes in a full slot: copies its actions."""
        length = slot.action.shape[0]
        self._blocks.append((self._end, slot.action.copy()))
        resets = ~slot.valid  # [T, B]
        any_reset = resets.any(0)
        last = length - 1 - np.argmax(resets[::-1], axis=0)
        self._begins = np.where(any_reset, self._end + last + 1, self._begins)
        self.episodes += resets.sum(0)
        self._end += length
        self.last_observation = slot.observation[-1].copy()
        oldest = max(int(self._begins.min()), self._end - self._max_steps)
        while self._blocks and self._blocks[0][0] + self._blocks[0][1].shape[0] <= oldest:
            self._blocks.popleft()

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The log as arrays: `episodes` [B], `lengths` [B] (-1: too long to play again), `actions` [sum of lengths, ...]."""
        kept = self._blocks[0][0] if self._blocks else self._end
        lengths = np.where(self._begins >= kept, self._end - self._begins, -1)
        rows: list[np.ndarray] = []
        if self._blocks:
            actions = np.concatenate([block for _, block in self._blocks])
            rows = [actions[begin - kept :, row] for row, begin in enumerate(self._begins) if lengths[row] > 0]
        arrays = {"episodes": self.episodes.copy(), "lengths": lengths}
        if rows:
            arrays["actions"] = np.concatenate(rows)
        if self.last_observation is not None:
            arrays["observation"] = self.last_observation
        return arrays

    def restore(self, arrays: dict[str, np.ndarray]) -> EpisodeReset:
        """Continues from `to_arrays`; returns what the environments must play again."""
        lengths = arrays["lengths"]
        self.episodes = arrays["episodes"] + (lengths < 0)
        lengths = np.maximum(lengths, 0)
        self._begins = self._end - lengths
        self.last_observation = arrays.get("observation")
        actions: list[np.ndarray | None] = [None] * len(lengths)
        longest = int(lengths.max(initial=0))
        if longest:
            flat = arrays["actions"]
            block = np.zeros((longest, len(lengths), *flat.shape[1:]), flat.dtype)
            ends = np.cumsum(lengths)
            for row, (end, length) in enumerate(zip(ends, lengths, strict=True)):
                if length:
                    actions[row] = flat[end - length : end]
                    block[longest - length :, row] = actions[row]
            self._blocks.append((self._end - longest, block))
        return EpisodeReset(tuple(int(episode) for episode in self.episodes), tuple(actions))
