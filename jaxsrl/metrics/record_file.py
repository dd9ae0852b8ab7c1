"""Reader of `metrics.jsonl`: parses its lines, and keeps them as columns while the file grows."""

import contextlib
import json
import math
import os
import sys
import threading
from array import array
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.metrics.sinks import PROCESS_START

UPDATE, ENV_STEPS, ELAPSED = "update", "env_steps", "elapsed_seconds"
RETURN, SPEED = "episode/return_mean", "speed/env_steps_per_second"
_RATES = ("speed/", "utilization/", "inference/", "policy/lag_mean")
_MOST_ROWS = 2000
_CHUNK, _END_BYTES = 1 << 20, 1 << 14
_NEEDED = (UPDATE, ENV_STEPS, "wall_seconds")
_FIRST = b'{"update"'  # start of every record


def parse_record(line: bytes) -> tuple[dict[str, float] | None, bool]:
    """Parses a line of metrics.jsonl, with or without its end.

    Returns:
        The numbers of the record by name; None if the line is no JSON object with a finite update, env_steps and wall_seconds.
        Then whether the line holds nothing but the record. It does not if a crash cut a line short, and the next process
        appended a whole one to it.
    """
    numbers = _parse_numbers(line)
    if numbers is not None:
        return numbers, True
    start = line.rfind(_FIRST)
    return _parse_numbers(line[start:]) if start > 0 else None, False


def _parse_numbers(line: bytes) -> dict[str, float] | None:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    numbers = {str(name): value for name, value in data.items() if _is_number(value)}
    return numbers if all(math.isfinite(numbers.get(name, math.nan)) for name in _NEEDED) else None


def _is_number(value: object) -> bool:
    """Returns whether the value is a float, or an integer that a float can hold."""
    is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return is_whole or isinstance(value, float)


def read_returns(path: Path, last_env_steps: int) -> list[float]:
    """Returns the mean returns of a run's newest records up to these env steps, oldest first."""
    records = RecordFile(path)
    records.read_end()
    pairs = zip(records.columns[ENV_STEPS], records.columns.get(RETURN, ()), strict=False)
    return [value for env_steps, value in pairs if env_steps <= last_env_steps and math.isfinite(value)]


def read_steady_records(path: Path) -> list[dict[str, float]]:
    """Returns the records of a run in which it learned, without the first and the last where there are others.

    A run that ends too early for such a record is one record, whose speed is that of the whole run.
    """
    written = [json.loads(line) for line in path.read_text().splitlines()]
    # The last record of a run may follow one that was due just before it, with no update in between.
    records = [record for record in written if record.get(SPEED)]
    last = written[-1]
    return records[1:-1] or records[-1:] or [{**last, SPEED: last["env_steps"] / last["wall_seconds"]}]


class RecordFile:
    """Records of one run. Thread-safe.

    It reads only new bytes and whole lines. Of env steps that a resumed run repeated, it keeps the newer records. Updates do not
    place a record, because a resumed run may have updates of another size.

    Attributes:
        columns: values by name, all of one length; NaN where a record lacks the name. `elapsed_seconds` is the time that the
            processes of the run have trained, without repeated updates. Where another thread may call `refresh`, use
            `copy_columns`: an array whose buffer numpy reads cannot grow.
        resumed_at: env steps at which a process resumed from a checkpoint.
        num_damaged: lines that are no records.
        generation: changes whenever rows that were returned become invalid.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.generation = 0
        self._forget()

    def _forget(self) -> None:
        self.columns: dict[str, array[float]] = {UPDATE: array("d"), ENV_STEPS: array("d"), ELAPSED: array("d")}
        self.resumed_at: list[float] = []
        self.num_damaged = 0
        self._offset, self._torn, self._identity = 0, b"", (0, 0)
        self._wall, self._began = 0.0, 0.0  # of the newest record; what earlier processes trained
        self._start: float | None = None  # of the newest record's process

    @property
    def num_rows(self) -> int:
        """Number of records."""
        return len(self.columns[UPDATE])

    @property
    def num_bytes(self) -> int:
        """Bytes of the file that were read."""
        return self._offset

    def refresh(self, most_bytes: int | None = None) -> int:
        """Reads what was appended; starts again if the file was replaced or cut.

        Args:
            most_bytes: about how many to read now; the next calls read the rest. None for all.

        Returns:
            Bytes left to read.

        Raises:
            UserError: If the file exists, but cannot be read.
        """
        with self._lock:
            try:
                status = os.stat(self._path)
            except OSError:
                return 0
            identity = (status.st_dev, status.st_ino)
            if identity != self._identity or status.st_size < self._offset:
                self._forget()
                self._identity = identity
                self.generation += 1
            if status.st_size > self._offset:
                self._read(status.st_size if most_bytes is None else self._offset + most_bytes)
            return max(0, status.st_size - self._offset)

    def read_newest(self) -> None:
        """Reads the newest record as if it were the only one, in constant time; none where it is not in the last 16 KiB."""
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _END_BYTES))
            for line in reversed(file.read().split(b"\n")[:-1]):
                record, _ = parse_record(line)
                if record is not None:
                    self._take(record)
                    return

    def read_end(self) -> None:
        """Reads the records of the last MiB as if there were no others, in constant time."""
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - _CHUNK)
            file.seek(start)
            for line in file.read().split(b"\n")[bool(start) :]:  # the first one is cut
                self._take_line(line)

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
        wall, start, steps = record.pop("wall_seconds"), record.pop(PROCESS_START, None), self.columns[ENV_STEPS]
        # Records of earlier versions do not say which process wrote them.
        is_other = start != self._start or wall < self._wall
        if self.num_rows and (is_other or record[ENV_STEPS] < steps[-1]):
            self._resume(record)
        self._wall, self._start = wall, start
        if self.num_rows and record[ENV_STEPS] == steps[-1]:
            # A run ends with a record right after the one before: rates over no time would say that nothing happens.
            self._merge(record)
            return
        record[ELAPSED] = self._began + wall
        self._append(record)

    def _resume(self, record: dict[str, float]) -> None:
        """Removes the rows after the checkpoint, which the first record of a process names."""
        has_updates = record.get(SPEED) != 0.0
        kept_update = min(record.get("checkpoint/update", math.inf), record[UPDATE] - has_updates)
        steps, kept = self.columns[ENV_STEPS], self.num_rows
        kept_steps = kept_update * record[ENV_STEPS] / max(record[UPDATE], 1)
        while kept and steps[kept - 1] > kept_steps:
            kept -= 1
        if kept < self.num_rows:
            for column in self.columns.values():
                del column[kept:]
            self.generation += 1
        self._began = self.columns[ELAPSED][-1] if kept else 0.0
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

    def copy_columns(self, *names: str) -> "list[array[float]]":
        """Returns copies of columns, of one length; empty ones if there are no records."""
        with self._lock:
            return [self.columns.get(name, array("d"))[:] for name in names]

    def last(self, name: str) -> float | None:
        """Returns the newest value that is a number; None if there is none."""
        return next((value for value in reversed(self.columns.get(name, ())) if math.isfinite(value)), None)

    def since(self, cursor: str = "") -> dict[str, Any]:
        """Returns the rows after those of an earlier answer, as JSON data.

        Args:
            cursor: Cursor of the earlier answer; "" asks for all.

        Returns:
            `cursor`; `restart`, whether earlier answers are invalid; `stride`, the records per returned row (at most 2,000 rows);
            `columns`, with None for what is not finite; `resumed_at`; `num_damaged`.
        """
        with self._lock:
            stride = 1
            while self.num_rows / stride > _MOST_ROWS:
                stride *= 2
            mark = f"{self.generation}.{stride}"
            known_mark, _, begin = cursor.rpartition(".")
            known = known_mark == mark and begin.isdecimal() and int(begin) <= self.num_rows
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
