"""Counter of updates that were skipped because they were not finite, with a limit on consecutive ones."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from agents.api import Metrics
from jaxsrl.learner.finite_updates import SKIPPED
from jaxsrl.machine.devices import start_copies_to_host


class NotFiniteError(RuntimeError):
    """Too many consecutive updates were not finite."""


class FiniteWatch:
    """Reads the metrics of each update and counts skipped ones. Thread-safety: one thread, the learner's.

    Reading waits for the device. So metrics are copied to the host at once and read one update late, while the next one runs, until
    an update was skipped.

    Args:
        limit: consecutive skipped updates that are too many; 0 for no limit.
        dump: path of the file for the batch that exceeds the limit; None for no file.

    Attributes:
        skipped: updates skipped so far.
    """

    def __init__(self, limit: int, dump: Path | None = None) -> None:
        self.skipped = 0
        self._limit, self._dump = limit, dump
        self._in_a_row = 0
        self._unread: Metrics | None = None

    def observe(self, metrics: Metrics, batch: Any, wait: bool) -> bool:
        """Returns whether too many consecutive updates have now been skipped; then the count restarts at 0.

        Args:
            metrics: of the newest update.
            batch: its data, a pytree of arrays.
            wait: whether its metrics may be read now.
        """
        before, self._unread = self._unread, _skipped(metrics)
        start_copies_to_host(self._unread)
        if before is not None:
            self._count(before)
        if wait or self._in_a_row or self._limit == 1:  # one skipped update is too many: its batch must be the newest
            self._count(self._unread)
            self._unread = None
        if not self._limit or self._in_a_row < self._limit:
            return False
        self._in_a_row = 0
        if self._dump is not None and jax.tree.leaves(batch):
            write_batch(self._dump, batch)
        return True

    def _count(self, metrics: Metrics) -> None:
        was_skipped = any(float(value) > 0.0 for value in metrics.values())
        self.skipped += was_skipped
        self._in_a_row = self._in_a_row + 1 if was_skipped else 0


def _skipped(metrics: Metrics) -> Metrics:
    """Returns the metrics that say whether an update was skipped: one, or one of each policy."""
    return {name: value for name, value in metrics.items() if name.endswith(SKIPPED)}


def write_batch(path: Path, batch: Any) -> None:
    """Writes a pytree's arrays by their paths into a .npz file, for inspection."""
    leaves = jax.tree_util.tree_flatten_with_path(jax.device_get(batch))[0]
    with open(path, "wb") as file:
        arrays = {jax.tree_util.keystr(place).lstrip("."): np.asarray(leaf) for place, leaf in leaves}
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
