"""TensorBoard curves over env steps."""

import itertools
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from jaxsrl.metrics.atomic_append import AtomicAppendFile
from jaxsrl.metrics.evaluations import Evaluation
from jaxsrl.metrics.sinks import Record

_files = itertools.count()


class TensorBoardSink:
    """Event file of scalars, written in the caller's thread.

    The file is created with the first record. tensorboardX's SummaryWriter writes in its own thread behind a queue: if that thread
    dies, for example because the disk is full, the eleventh record blocks forever. Therefore only its format is used.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: AtomicAppendFile | None = None

    def write(self, record: Record) -> None:
        """Adds a point to every curve.

        Raises:
            OSError: If it could not be written; the file is then unchanged.
        """
        self._add(record.values, record.env_steps)

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Adds points at the env steps of the evaluated version; raises as `write` does."""
        self._add(evaluation.metrics(), evaluation.env_steps)

    def _add(self, values: Mapping[str, float], env_steps: int) -> None:
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboardX.summary import scalar

        now = time.time()
        if self._file is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}.{next(_files)}"
            self._file = AtomicAppendFile(self._directory / name)
        if not self._file.size:
            self._file.append(_frame(Event(wall_time=now, file_version="brain.Event:2").SerializeToString()))
        points = [scalar(name, value).value[0] for name, value in values.items()]
        event = Event(wall_time=now, step=env_steps, summary=Summary(value=points))
        self._file.append(_frame(event.SerializeToString()))

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _frame(data: bytes) -> bytes:
    """Returns an event in its file format: its length, the length's checksum, the event, its checksum."""
    from tensorboardX.record_writer import masked_crc32c

    header = struct.pack("<Q", len(data))
    return header + struct.pack("<I", masked_crc32c(header)) + data + struct.pack("<I", masked_crc32c(data))
