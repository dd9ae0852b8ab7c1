"""Sum-tree in numpy, bit-for-bit identical to `jaxsrl.replay.device.sum_tree`: same array, same order of additions."""

import itertools

import numpy as np

from jaxsrl.replay.device.sum_tree import FAN_OUT, level_offsets


class HostTree:
    """Weights, and draws in proportion to them. Thread-safety: one thread at a time.

    Attributes:
        nodes: float32, all levels, in the order of `device.sum_tree`.
    """

    def __init__(self, num_leaves: int) -> None:
        offsets = level_offsets(num_leaves)
        self.nodes = np.zeros(offsets[-1], np.float32)
        self._levels = [self.nodes[first:last] for first, last in itertools.pairwise(offsets)]
        self._families = [level.reshape(-1, FAN_OUT) for level in self._levels]

    @property
    def num_levels(self) -> int:
        """Number of random numbers per leaf."""
        return len(self._levels)

    def weights_at(self, leaf: np.ndarray) -> np.ndarray:
        """Returns the weights, [n] float32, of leaves [n]."""
        return self._levels[-1].take(leaf)

    def write(self, leaf: np.ndarray, weight: np.ndarray | np.float32) -> None:
        """Sets the weights of leaves [n]; of equal leaves the last counts. Call `update_sums` next."""
        self._levels[-1][leaf] = weight

    def update_sums(self, node: np.ndarray) -> None:
        """Corrects the sums above these lowest nodes [n]. Node i has the leaves from 16 i on."""
        for level in range(len(self._levels) - 1, 0, -1):
            families, above = self._families[level], self._levels[level - 1]
            if len(families) <= len(node):
                above[: len(families)] = np.add.accumulate(families, axis=1)[:, -1]
                node = np.arange(-(-len(families) // FAN_OUT))
            else:
                above[node] = np.add.accumulate(families.take(node, 0), axis=1)[:, -1]
                node = node // FAN_OUT

    def draw(self, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns leaves drawn in proportion to their weights; see `device.sum_tree.draw_leaves`.

        Args:
            uniform: [levels, n] float32 in [0, 1).

        Returns:
            [n] int64 leaves, and [n] float32 probabilities.
        """
        sums = np.add.accumulate(self._levels[0])
        everything = sums[-1]
        # Sums never decrease, so the number of reached sums is the insertion point.
        node = sums.searchsorted(uniform[0] * everything, "right")
        for level, numbers in zip(self._families[1:], uniform[1:], strict=True):
            if len(level) <= len(node):
                sums = np.add.accumulate(level, axis=1).take(node, 0)
            else:
                sums = np.add.accumulate(level.take(node, 0), axis=1)
            reached = sums <= (numbers * sums[:, -1])[:, None]
            node = node * FAN_OUT + reached.argmin(axis=1)
        return node, self.weights_at(node) / everything
