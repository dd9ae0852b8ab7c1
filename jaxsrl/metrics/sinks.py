"""Metrics sinks: `metrics.jsonl`, and several sinks as one. A failing sink never stops a run."""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from jaxsrl.metrics.atomic_append import AtomicAppendFile

_MOST_BYTES = 1 << 25
PROCESS_START = "process_start_seconds"
"""Unix time at which the process that wrote a line of metrics.jsonl started."""


@dataclasses.dataclass(frozen=True)
class Record:
    """One line of metrics.

    Attributes:
        update: updates done.
        env_steps: environment steps done.
        frames: emulator frames: env_steps times the action repeat.
        wall_seconds: seconds since this process started training.
        values: values by name; units are in the metrics reference.
    """

    update: int
    env_steps: int
    frames: int
    wall_seconds: float
    values: dict[str, float]

    def to_json(self) -> dict[str, float]:
        """Returns all numbers by name, as a line of metrics.jsonl has them."""
        return {name: number for name, number in vars(self).items() if name != "values"} | self.values


class MetricsSink(Protocol):
    """Receiver of records. The first exception of a sink is logged, all are counted, and the sink still gets the next record."""

    def write(self, record: Record) -> None:
        """Writes one record."""
        ...

    def close(self) -> None:
        """Flushes and closes; idempotent."""
        ...


class JsonlSink:
    """One JSON object per line; a resumed run appends. The file contains whole lines only, even if the disk is full.

    The file is opened with the first record. Every line says when this sink was made (`PROCESS_START`), which shows where a run
    was resumed. Records become sparser with their age: the file of a run of weeks has at most 32 MiB.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._start, self._limit = path, time.time(), _MOST_BYTES
        self._file: AtomicAppendFile | None = None

    def write(self, record: Record) -> None:
        """Appends a line.

        Raises:
            OSError: If it could not be written; the file is then unchanged.
        """
        if self._file is None:
            self._file = AtomicAppendFile(self._path)
            drop_torn_line(self._path, self._file)
        line = record.to_json() | {PROCESS_START: self._start}
        self._file.append((json.dumps(line) + "\n").encode())
        if self._file.size > self._limit:
            self.close()
            self._thin()

    def _thin(self) -> None:
        """Removes every second record of the older half, but not the first and last of a process, which show where one resumed."""
        lines = self._path.read_bytes().splitlines(keepends=True)
        starts = [line.rpartition(b",")[2] for line in lines]
        kept = [
            line
            for index, line in enumerate(lines)
            if index % 2 == 0 or index >= len(lines) // 2 or len({*starts[index - 1 : index + 2]}) > 1
        ]
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            with open(new, "wb") as file:
                file.writelines(kept)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self._path)
            self._limit = _MOST_BYTES
        except OSError:  # a full disk: all records stay
            new.unlink(missing_ok=True)
            self._limit += _MOST_BYTES // 4

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def drop_torn_line(path: Path, file: AtomicAppendFile) -> None:
    """Removes a partial last line of a killed process, which would corrupt the next line."""
    end = file.size
    with open(path, "rb") as reader:
        while end:
            start = max(0, end - (1 << 16))
            reader.seek(start)
            newline = reader.read(end - start).rfind(b"\n")
            end = start + newline + 1
            if newline >= 0:
                break
    if end < file.size:
        file.truncate(end)


class Sinks:
    """Several sinks as one. A sink that fails loses a record, which is counted; it stops neither the run nor the other sinks.

    Args:
        sinks: sinks that get every record.
        say: called at the first failure of each sink; None for stderr.

    Attributes:
        dropped_records: records dropped by a sink since the start of the process; recorded as `metrics/dropped_records_total`.
    """

    def __init__(self, sinks: Sequence[MetricsSink], say: Callable[[str], None] | None = None) -> None:
        self.dropped_records = 0
        self._sinks = list(sinks)
        self._say = say or (lambda line: print(line, file=sys.stderr))  # noqa: T201
        self._reported: set[int] = set()

    def write(self, record: Record) -> None:
        """Passes the record to all sinks, with the number of records lost before it."""
        values = {**record.values, "metrics/dropped_records_total": float(self.dropped_records)}
        record = dataclasses.replace(record, values=values)
        for sink in self._sinks:
            self._pass(sink, sink.write, record)

    def write_evaluation(self, evaluation: Any) -> None:
        """Passes an evaluation of an earlier version (`jaxsrl.metrics.evaluations.Evaluation`) to the sinks that show it."""
        for sink in self._sinks:
            write = getattr(sink, "write_evaluation", None)
            if write is not None:
                self._pass(sink, write, evaluation)

    def _pass(self, sink: MetricsSink, write: Callable[[Any], None], item: Any) -> None:
        try:
            write(item)
        except Exception as error:  # noqa: BLE001  a full disk, an unreachable service
            self.dropped_records += 1
            self._report(sink, error)

    def close(self) -> None:
        """Closes all sinks."""
        for sink in self._sinks:
            try:
                sink.close()
            except Exception as error:  # noqa: BLE001  as above
                self._report(sink, error)
        self._sinks = []

    def _report(self, sink: MetricsSink, error: Exception) -> None:
        if id(sink) in self._reported:
            return
        self._reported.add(id(sink))
        self._say(
            f"metrics: {type(sink).__name__} failed ({type(error).__name__}: {error}); training continues; records that it "
            f"drops are counted as metrics/dropped_records_total"
        )
