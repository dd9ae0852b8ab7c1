"""Journals of a run's steps, written by the workers and by the learner's side, for `journal_audit`.

A worker writes a record of each of its parts' steps before the ring announces it. The learner's side writes one when it releases
the slot. A record is one write() to a file opened for appending: it survives the death of its writer.
"""

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from envpool_bridge.envs.protocol import EnvRows, FirstRows, ResetRequest, StepRows, step_rows
from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.shm.slots import SlotViews
from envpool_bridge.spec.tree import Tree, leaves, take

RECORD = np.dtype(
    [
        ("step", "<i8"),  # of the run
        ("incarnation", "<i4"),  # of the worker that made it
        ("part", "<i4"),
        ("crc", "<u4"),  # of everything but `truncated`, which a later cut may set
        ("num_valid", "<i2"),  # rows
        ("num_truncated", "<i2"),
        ("broken", "<i2"),  # whether a row's episode was cut here
    ]
)


def environment_name(first_row: int, worker: int, incarnation: int) -> str:
    """File of one worker process; the pool is told by its first row."""
    return f"environments-{first_row}-{worker}-{incarnation}.journal"


def learner_name(first_row: int) -> str:
    """File of the learner's side of a pool."""
    return f"learner-{first_row}.journal"


def digest(action: Tree, out: StepRows) -> int:
    """A checksum of one step of some rows, without `truncated`."""
    found = 0
    arrays = (out.reward, out.terminated, out.valid, out.is_first, *leaves(out.observation), *leaves(action))
    for array in arrays:
        found = zlib.crc32(array.tobytes(), found)
    return found


class Journal:
    """A file of records. Process-safety: one writer."""

    def __init__(self, path: Path) -> None:
        """A new file.

        Raises:
            UserError: there is one: it is another run's.
        """
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except FileExistsError as error:
            raise UserError(f"expected a directory without journals, found {path}: name a new one") from error

    def write(self, records: np.ndarray) -> None:
        """Appends records, all or none of them."""
        os.write(self._descriptor, records.tobytes())

    def close(self) -> None:
        """Closes the file; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def record_of(part: int, step: int, incarnation: int, action: Tree, out: StepRows) -> tuple[int, ...]:
    """A record's fields, of one step of a part."""
    valid, truncated = out.valid, out.truncated
    broken = int((truncated & ~valid).any())
    return step, incarnation, part, digest(action, out), int(valid.sum()), int(truncated.sum()), broken


class JournaledRows:
    """A part's rows, which write down what they do. Keeps the protocol `EnvRows`."""

    def __init__(self, owner: Any, rows: EnvRows, journal: Journal, incarnation: int) -> None:
        """Of `owner`, a worker's Part."""
        self._owner, self._rows, self._journal, self._incarnation = owner, rows, journal, incarnation
        self.num_rows = rows.num_rows
        self.infos: list[dict[str, Any]] = []

    def reset(self, request: ResetRequest, out: FirstRows | StepRows) -> None:
        """As the rows do; a reset that is a step is written down."""
        self._rows.reset(request, out)
        self.infos = self._rows.infos
        if isinstance(out, StepRows):
            self._note(self._owner.action[self._owner.step % len(self._owner.action)], out)

    def step(self, action: Tree, out: StepRows) -> None:
        """As the rows do."""
        self._rows.step(action, out)
        self.infos = self._rows.infos
        self._note(action, out)

    def verify(self, observation: Tree, reward: np.ndarray) -> None:
        """As the rows do."""
        self._rows.verify(observation, reward)

    def close(self) -> None:
        """As the rows do."""
        self._rows.close()
        self._journal.close()

    def _note(self, action: Tree, out: StepRows) -> None:
        record = record_of(self._owner.part, self._owner.step, self._incarnation, action, out)
        self._journal.write(np.array([record], RECORD))


class LearnerJournal:
    """The learner's side. One thread: the one that releases slots."""

    def __init__(self, directory: str, shape: PoolShape, first_row: int) -> None:
        """Makes the directory if it is not there.

        Raises:
            UserError: it holds journals of this pool already.
        """
        Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._journal = Journal(Path(directory) / learner_name(first_row))
        self._shape = shape

    def note(self, sequence: int, slot: SlotViews) -> None:
        """Writes down a slot that was consumed and is about to be given back."""
        shape, records = self._shape, []
        for t in range(shape.rollout_length):
            for part in range(shape.num_parts):
                columns = shape.part_rows(part)
                step, incarnation = sequence * shape.rollout_length + t, int(slot.incarnation[part])
                action, out = take(slot.action, (t, columns)), step_rows(slot, t, columns)
                records.append(record_of(part, step, incarnation, action, out))
        self._journal.write(np.array(records, RECORD))

    def close(self) -> None:
        """Closes the file; idempotent."""
        self._journal.close()


def journal_parts(directory: str, parts: Sequence[Any], first_row: int, worker: int, incarnation: int) -> None:
    """Wraps the rows of a worker's parts, so that they write a journal into the directory."""
    journal = Journal(Path(directory) / environment_name(first_row, worker, incarnation))
    for part in parts:
        part.rows = JournaledRows(part, part.rows, journal, incarnation)


def journal_in(directory: Path) -> str:
    """Returns the name of a journal in this directory, for `PoolOptions` and `CollectorConfig`."""
    return f"{__name__}:{directory}"
