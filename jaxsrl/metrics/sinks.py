"""Where records go: `metrics.jsonl`, and several sinks as one of which none can end a run."""

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from jaxsrl.metrics.atomic_append import AtomicAppendFile


@dataclasses.dataclass(frozen=True)
class Record:
    """One line of metrics.

    Attributes:
        update: updates done.
        env_steps: environment steps done.
        frames: emulator frames, env_steps times the action repeat.
        wall_seconds: since this process began to train.
        values: by name; units in `docs/reference/metrics.md`.
    """

    update: int
    env_steps: int
    frames: int
    wall_seconds: float
    values: dict[str, float]


class MetricsSink(Protocol):
    """Takes records. Whatever it raises is told once and counted; it is given the next record all the same."""

    def write(self, record: Record) -> None:
        """Takes one record."""
        ...

    def close(self) -> None:
        """Writes out what is left; idempotent."""
        ...


class JsonlSink:
    """One JSON object a line; a resumed run appends. The file has whole lines only, whatever the disk does."""

    def __init__(self, path: Path) -> None:
        """Opens the file with the first record, for appending."""
        self._path = path
        self._file: AtomicAppendFile | None = None

    def write(self, record: Record) -> None:
        """Appends a line.

        Raises:
            OSError: it could not be written; nothing of it is left in the file.
        """
        fixed = {name: value for name, value in dataclasses.asdict(record).items() if name != "values"}
        if self._file is None:
            self._file = AtomicAppendFile(self._path)
            _drop_torn_line(self._path, self._file)
        self._file.append((json.dumps({**fixed, **record.values}) + "\n").encode())

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _drop_torn_line(path: Path, file: AtomicAppendFile) -> None:
    """Takes away what a process that was killed had written of its last line: the next one would be glued to it."""
    end = file.size
    with open(path, "rb") as reader:
        while end:
            begin = max(0, end - (1 << 16))
            reader.seek(begin)
            newline = reader.read(end - begin).rfind(b"\n")
            end = begin + newline + 1
            if newline >= 0:
                break
    if end < file.size:
        file.cut(end)


class Sinks:
    """Several sinks as one. A sink that fails loses a record, which is counted; it ends neither the run nor the other sinks.

    Attributes:
        lost_records: that some sink did not take, since the process began; recorded as `metrics/lost_records`.
    """

    def __init__(self, sinks: Sequence[MetricsSink], say: Callable[[str], None] | None = None) -> None:
        """Passes every record to each of `sinks`, and tells `say` (stderr if None) when one fails for the first time."""
        self.lost_records = 0
        self._sinks = list(sinks)
        self._say = say or _to_stderr
        self._told: set[int] = set()

    def write(self, record: Record) -> None:
        """Passes the record on, with the number of those lost before it."""
        values = {**record.values, "metrics/lost_records": float(self.lost_records)}
        record = dataclasses.replace(record, values=values)
        for sink in self._sinks:
            try:
                sink.write(record)
            except Exception as error:  # noqa: BLE001  a sink may be anything: a full disk, a service that is down
                self.lost_records += 1
                self._tell(sink, error)

    def close(self) -> None:
        """Closes all."""
        for sink in self._sinks:
            try:
                sink.close()
            except Exception as error:  # noqa: BLE001  as above
                self._tell(sink, error)
        self._sinks = []

    def _tell(self, sink: MetricsSink, error: Exception) -> None:
        if id(sink) in self._told:
            return
        self._told.add(id(sink))
        self._say(
            f"metrics: {type(sink).__name__} failed ({type(error).__name__}: {error}); training goes on, and records that it "
            f"does not take are counted as metrics/lost_records"
        )


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
