"""Counter of updates that were skipped because they were not finite, with a limit on consecutive ones."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from agents.api import Metrics
from jaxsrl.checkpoints.store import flatten
from jaxsrl.learner.finite_updates import SKIPPED, SkipCounts
from jaxsrl.machine.devices import start_copies_to_host
from jaxsrl.replay.on_device import GRADIENT_STEPS

if TYPE_CHECKING:
    from jaxsrl.learner.loop import LearnerStats


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
        finite: updates with a gradient step that were not.
        span: updates since the first skipped one after the newest finite one; more than skipped ones where some took no gradient
            step. It grows past the limit, until an update is finite. 0 if the newest one is finite.
        written: file of the batch that exceeded the limit last; None while this process has written none.
    """

    def __init__(self, limit: int, dump: Path | None = None) -> None:
        self.skipped = self.finite = self.span = 0
        self.written: Path | None = None
        self._limit, self._dump = limit, dump
        self._in_a_row = 0
        self._is_span_open = False  # whether no update was finite since the first of the span
        self._unread: Metrics | None = None

    def observe(self, metrics: Metrics, batch: Any, wait: bool) -> bool:
        """Returns whether too many consecutive updates have now been skipped; then the count restarts at 0.

        Args:
            metrics: Metrics of the newest update.
            batch: Data of the update, a pytree of arrays.
            wait: whether its metrics may be read now.
        """
        before, self._unread = self._unread, _skipped(metrics)
        start_copies_to_host(self._unread)
        if before is not None:
            self._count(before)  # never too many: those after the first are read at once
        if not wait and not self._in_a_row and self._limit != 1:  # with 1, the batch to be written must be the newest
            return False
        too_many, self._unread = self._count(self._unread), None
        if too_many and self._dump is not None and jax.tree.leaves(batch):
            write_batch(self._dump, batch)
            self.written = self._dump
        return too_many

    def observe_all(self, counts: SkipCounts, num_updates: int) -> bool:
        """Returns what `observe` returns, for several updates at once: whether too many consecutive ones of them were skipped.

        Args:
            counts: Counts of the updates; int32 scalars that may be read now.
            num_updates: updates, those without a gradient step too.
        """
        return self._add(SkipCounts(*map(int, jax.device_get(counts))), num_updates)

    def count_in(self, stats: "LearnerStats") -> None:
        """Writes the counts into the totals of a learner."""
        stats.skipped, stats.skipped_span, stats.finite = self.skipped, self.span, self.finite

    def _count(self, metrics: Metrics) -> bool:
        return self._add(SkipCounts().after({name: float(value) for name, value in metrics.items()}), 1)

    def _add(self, counts: SkipCounts, num_updates: int) -> bool:
        before, span = self._in_a_row, num_updates + (self.span if self._is_span_open else 0)
        self.skipped += counts.skipped
        self.finite += counts.finite
        self._in_a_row = counts.newest if counts.finite else before + counts.newest
        self._is_span_open = counts.newest > 0 or (self._is_span_open and not counts.finite)
        self.span = (num_updates if counts.finite else span) if self._is_span_open else 0
        if not self._limit or max(before + counts.first, counts.longest) < self._limit:
            return False
        self._in_a_row, self._is_span_open = 0, True
        self.span = span if before + counts.first >= self._limit else num_updates
        return True


def _skipped(metrics: Metrics) -> Metrics:
    """Returns the metrics that say whether an update was skipped, and whether it took gradient steps."""
    return {name: value for name, value in metrics.items() if name.endswith((SKIPPED, GRADIENT_STEPS))}


def write_batch(path: Path, batch: Any) -> None:
    """Writes a pytree's arrays by their paths into a .npz file, for inspection."""
    arrays: Any = {name.lstrip("."): array for name, array in flatten(jax.device_get(batch), "").items()}
    with open(path, "wb") as file:
        np.savez(file, **arrays)
