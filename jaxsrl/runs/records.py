"""`metrics.jsonl` as columns, read as it grows: only new bytes, whole lines, and of what a resumed run did again the newer half."""

import math
import os
import threading
from array import array
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.metrics.read_records import parse_record

UPDATE, ELAPSED = "update", "elapsed_seconds"
RETURN, SPEED = "episode/return_mean", "speed/env_steps_per_second"
_RATES = ("speed/", "wait_share/", "busy_share/", "inference/", "policy/lag_mean")
_MOST_ROWS = 2000
_CHUNK = 1 << 20


class RecordFile:
    """The records of one run. Thread-safe.

    Attributes:
        columns: values by name, all of one length; NaN where a record lacks the name. `elapsed_seconds` is the time that the
            processes of the run have trained, without what was done again.
        resumed_at: env steps at which a process went on from a checkpoint.
        num_damaged: lines that were no records.
        generation: changes whenever rows that were told are no longer true.
    """

    def __init__(self, path: Path) -> None:
        """Nothing is read yet; the file need not exist."""
        self._path = path
        self._lock = threading.Lock()
        self.generation = 0
        self._forget()

    def _forget(self) -> None:
        self.columns: dict[str, array[float]] = {UPDATE: array("d"), ELAPSED: array("d")}
        self.resumed_at: list[float] = []
        self.num_damaged = 0
        self._offset, self._torn, self._identity = 0, b"", (0, 0)
        self._wall, self._began = 0.0, 0.0  # of the newest record; what earlier processes trained

    @property
    def num_rows(self) -> int:
        """Records that count."""
        return len(self.columns[UPDATE])

    @property
    def num_bytes(self) -> int:
        """Of the file, read so far."""
        return self._offset

    def refresh(self, most_bytes: int | None = None) -> int:
        """Reads what was appended; begins anew if the file was replaced or cut.

        Args:
            most_bytes: to read now, about: the rest is read by the next calls; None for all.

        Returns:
            Bytes that are left to read.

        Raises:
            UserError: the file is there, but cannot be read.
        """
        with self._lock:
            try:
                found = os.stat(self._path)
            except OSError:
                return 0
            identity = (found.st_dev, found.st_ino)
            if identity != self._identity or found.st_size < self._offset:
                self._forget()
                self._identity = identity
                self.generation += 1
            if found.st_size > self._offset:
                self._read(found.st_size if most_bytes is None else self._offset + most_bytes)
            return max(0, found.st_size - self._offset)

    def _read(self, until: int) -> None:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                while self._offset < until and (chunk := file.read(_CHUNK)):
                    self._offset += len(chunk)
                    *lines, self._torn = (self._torn + chunk).split(b"\n")
                    for line in lines:
                        self._take_line(line)
        except OSError as error:
            raise UserError(f"cannot read {self._path}: {error.strerror}") from error

    def _take_line(self, line: bytes) -> None:
        record, is_whole = parse_record(line)
        self.num_damaged += not is_whole and bool(line.strip())
        if record is not None:
            self._take(record)

    def _take(self, record: dict[str, float]) -> None:
        wall, update = record.pop("wall_seconds"), record[UPDATE]
        updates = self.columns[UPDATE]
        if self.num_rows and (wall < self._wall or update < updates[-1]):
            self._resume(record)
        elif self.num_rows and update == updates[-1]:
            # A run ends with a record right after the one before: rates over no time would say that nothing happens.
            self._merge(record)
            self._wall = wall
            return
        self._wall = wall
        record[ELAPSED] = self._began + wall
        self._append(record)

    def _resume(self, record: dict[str, float]) -> None:
        """Forgets what is done again: all after the checkpoint, which the first record of a process still names."""
        kept_update = min(record.get("checkpoint/update", math.inf), record[UPDATE] - 1)
        updates, kept = self.columns[UPDATE], self.num_rows
        while kept and updates[kept - 1] > kept_update:
            kept -= 1
        if kept < self.num_rows:
            for column in self.columns.values():
                del column[kept:]
            self.generation += 1
        self._began = self.columns[ELAPSED][-1] if kept else 0.0
        steps = self.columns.get("env_steps")
        self.resumed_at = [at for at in self.resumed_at if steps and at <= steps[-1]]
        if steps:
            self.resumed_at.append(steps[-1])

    def _merge(self, record: dict[str, float]) -> None:
        stands_still = record.get(SPEED) == 0.0
        for name, value in record.items():
            if not (stands_still and name.startswith(_RATES)):
                self._column(name)[-1] = value
        self.generation += 1

    def _append(self, record: dict[str, float]) -> None:
        for name in record:
            self._column(name)
        for name, column in self.columns.items():
            column.append(record.get(name, math.nan))

    def _column(self, name: str) -> "array[float]":
        if name not in self.columns:
            self.columns[name] = array("d", [math.nan]) * self.num_rows
        return self.columns[name]

    def last(self, name: str) -> float | None:
        """The newest value that is a number; None if there is none."""
        return next((value for value in reversed(self.columns.get(name, ())) if math.isfinite(value)), None)

    def best(self, name: str) -> float | None:
        """The largest value that is a number; None if there is none."""
        return max((value for value in self.columns.get(name, ()) if math.isfinite(value)), default=None)

    def since(self, cursor: str = "") -> dict[str, Any]:
        """The rows after those that an earlier answer told, as JSON data.

        Args:
            cursor: of the earlier answer; "" asks for all.

        Returns:
            `cursor`; `restart`, whether earlier answers no longer hold; `stride`, of how many records one is told (long runs are
            thinned to at most 2,000 rows); `columns`, None for what is not finite; `resumed_at`; `num_damaged`.
        """
        with self._lock:
            stride = 1
            while self.num_rows / stride > _MOST_ROWS:
                stride *= 2
            mark = f"{self.generation}.{stride}"
            known_mark, _, begin = cursor.rpartition(".")
            known = known_mark == mark and begin.isdigit() and int(begin) <= self.num_rows
            first = int(begin) if known else 0
            rows = range(-(-first // stride) * stride, self.num_rows, stride)
            columns = {
                name: [value if math.isfinite(value := column[row]) else None for row in rows]
                for name, column in self.columns.items()
            }
            return {
                "cursor": f"{mark}.{self.num_rows}",
                "restart": not known,
                "stride": stride,
                "columns": columns,
                "resumed_at": list(self.resumed_at),
                "num_damaged": self.num_damaged,
            }
