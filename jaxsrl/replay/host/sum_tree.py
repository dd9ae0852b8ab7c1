"""The sum-tree of `sum_tree` in numpy: the same array, the same additions in the same order, to the bit."""

import itertools

import numpy as np

from jaxsrl.replay.device.sum_tree import FAN_OUT, level_offsets


class HostTree:
    """Weights, drawn in proportion to them. Thread-safety: one thread at a time.

    Attributes:
        nodes: float32, all levels, as `sum_tree` has them.
    """

    def __init__(self, num_leaves: int) -> None:
        """A tree of zeros."""
        offsets = level_offsets(num_leaves)
        self.nodes = np.zeros(offsets[-1], np.float32)
        self._levels = [self.nodes[first:last] for first, last in itertools.pairwise(offsets)]
        self._families = [level.reshape(-1, FAN_OUT) for level in self._levels]

    @property
    def num_levels(self) -> int:
        """Numbers that drawing a leaf takes."""
        return len(self._levels)

    def weights_at(self, leaf: np.ndarray) -> np.ndarray:
        """[n] float32, of leaves [n]."""
        return self._levels[-1].take(leaf)

    def write(self, leaf: np.ndarray, weight: np.ndarray | np.float32) -> None:
        """Other weights for leaves [n]; of equal ones the last counts. Sums stay as they were: `add_up` must follow."""
        self._levels[-1][leaf] = weight

    def add_up(self, node: np.ndarray) -> None:
        """Corrects the sums above these lowest nodes [n], of which node i has the leaves from 16 i on."""
        for level in range(len(self._levels) - 1, 0, -1):
            families, above = self._families[level], self._levels[level - 1]
            if len(families) <= len(node):
                above[: len(families)] = np.add.accumulate(families, axis=1)[:, -1]
                node = np.arange(-(-len(families) // FAN_OUT))
            else:
                above[node] = np.add.accumulate(families.take(node, 0), axis=1)[:, -1]
                node = node // FAN_OUT

    def draw(self, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Leaves in proportion to their weights, as `sum_tree.draw_leaves`.

        Args:
            uniform: [levels, n] float32 in [0, 1).

        Returns:
            [n] int64 leaves, and [n] float32 probabilities.
        """
        sums = np.add.accumulate(self._levels[0])
        everything = sums[-1]
        # Sums never fall, so that how many were reached is where a number would have to be put in.
        node = sums.searchsorted(uniform[0] * everything, "right")
        for level, numbers in zip(self._families[1:], uniform[1:], strict=True):
            if len(level) <= len(node):
                sums = np.add.accumulate(level, axis=1).take(node, 0)
            else:
                sums = np.add.accumulate(level.take(node, 0), axis=1)
            reached = sums <= (numbers * sums[:, -1])[:, None]
            node = node * FAN_OUT + reached.argmin(axis=1)
        return node, self.weights_at(node) / everything
