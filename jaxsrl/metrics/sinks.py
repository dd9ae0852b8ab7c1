"""Where records go: `metrics.jsonl`, TensorBoard, the terminal."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class Record:
    """One line of metrics.

    Attributes:
        update: updates done.
        env_steps: environment steps done.
        frames: emulator frames, env_steps times the action repeat.
        wall_seconds: since this process began to train.
        values: by name; units in `docs/metrics.md`.
    """

    update: int
    env_steps: int
    frames: int
    wall_seconds: float
    values: dict[str, float]


class MetricsSink(Protocol):
    """Takes records."""

    def write(self, record: Record) -> None:
        """Takes one record."""
        ...

    def close(self) -> None:
        """Writes out what is left; idempotent."""
        ...


class JsonlSink:
    """One JSON object a line; a resumed run appends."""

    def __init__(self, path: Path) -> None:
        """Opens the file for appending."""
        self._file = open(path, "a")  # noqa: SIM115  open as long as the run

    def write(self, record: Record) -> None:
        """Appends a line."""
        fixed = {name: value for name, value in dataclasses.asdict(record).items() if name != "values"}
        self._file.write(json.dumps({**fixed, **record.values}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TensorBoardSink:
    """TensorBoard scalars over env steps."""

    def __init__(self, directory: Path) -> None:
        """Writes event files under `directory`."""
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(directory))

    def write(self, record: Record) -> None:
        """Adds a point to every curve."""
        for name, value in record.values.items():
            self._writer.add_scalar(name, value, record.env_steps)

    def close(self) -> None:
        """Flushes and closes."""
        self._writer.close()


class Sinks:
    """Several sinks as one."""

    def __init__(self, sinks: Sequence[MetricsSink]) -> None:
        """Passes every record to each of `sinks`."""
        self._sinks = list(sinks)

    def write(self, record: Record) -> None:
        """Passes the record on."""
        for sink in self._sinks:
            sink.write(record)

    def close(self) -> None:
        """Closes all."""
        for sink in self._sinks:
            sink.close()
        self._sinks = []
