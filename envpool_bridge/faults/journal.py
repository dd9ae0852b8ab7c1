"""Hook for journals of steps. Tests write and audit them: `tests/support/journal.py`.

A journal's name is "MODULE:DIRECTORY". The module is imported by every process that writes; "" is no journal.
"""

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.shm.slots import SlotViews


class LearnerJournal(Protocol):
    """Journal of the slots that the learner's side consumed."""

    def note(self, sequence: int, slot: SlotViews) -> None:
        """Records a slot that was consumed and is about to be released."""
        ...

    def close(self) -> None:
        """Closes the file; idempotent."""
        ...


def open_learner_journal(name: str, shape: PoolShape, first_row: int) -> LearnerJournal | None:
    """Returns the journal of the learner's side of a pool; None if `name` is ""."""
    module, _, directory = name.partition(":")
    return importlib.import_module(module).LearnerJournal(directory, shape, first_row) if name else None


def journal_parts(name: str, parts: Sequence[Any], first_row: int, worker: int, incarnation: int) -> None:
    """Wraps the rows of a worker's parts so that they record their steps; does nothing if `name` is ""."""
    module, _, directory = name.partition(":")
    if name:
        importlib.import_module(module).journal_parts(directory, parts, first_row, worker, incarnation)
