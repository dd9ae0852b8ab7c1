"""Counts updates that were left out because they were not finite, and says when there are too many in a row."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from agents.api import Metrics
from jaxsrl.learner.finite_updates import SKIPPED


class NotFiniteError(RuntimeError):
    """Learning came to NaN or infinity, update after update."""


class FiniteWatch:
    """Reads the metric of each update. One thread: the learner's.

    Reading waits for the device, so updates are read one late, when the next is under way, until one was left out.

    Attributes:
        skipped: updates left out so far.
    """

    def __init__(self, limit: int, dump: Path | None = None) -> None:
        """A watch.

        Args:
            limit: updates left out in a row that are too many; 0 for no limit.
            dump: where to write the batch that was too many; None for nowhere.
        """
        self.skipped = 0
        self._limit, self._dump = limit, dump
        self._in_a_row = 0
        self._unread: Metrics | None = None

    def observe(self, metrics: Metrics, batch: Any, wait: bool) -> bool:
        """Returns whether too many updates have now been left out in a row; then the count begins anew.

        Args:
            metrics: of the newest update.
            batch: what it learned from, a pytree of arrays.
            wait: whether its metrics may be read now.
        """
        before, self._unread = self._unread, metrics
        if before is not None:
            self._count(before)
        if wait or self._in_a_row:
            self._count(metrics)
            self._unread = None
        if not self._limit or self._in_a_row < self._limit:
            return False
        self._in_a_row = 0
        if self._dump is not None:
            write_batch(self._dump, batch)
        return True

    def _count(self, metrics: Metrics) -> None:
        left_out = any(float(value) > 0.0 for name, value in metrics.items() if name.endswith(SKIPPED))
        self.skipped += left_out
        self._in_a_row = self._in_a_row + 1 if left_out else 0


def write_batch(path: Path, batch: Any) -> None:
    """Writes a pytree's arrays by their paths into a .npz file, for people to look at."""
    leaves = jax.tree_util.tree_flatten_with_path(jax.device_get(batch))[0]
    with open(path, "wb") as file:
        arrays = {jax.tree_util.keystr(place).lstrip("."): np.asarray(leaf) for place, leaf in leaves}
        np.savez(file, allow_pickle=False, **arrays)
