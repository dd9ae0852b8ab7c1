"""Records of a run that is over, or still going on, from its metrics.jsonl."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from jaxsrl.metrics.sinks import Record

_FIXED = tuple(field.name for field in dataclasses.fields(Record) if field.name != "values")


def read_records(path: Path) -> list[Record]:
    """All records of the file, in its order; lines that are torn or no records are left out.

    A run that went on from an older checkpoint has the records of some updates twice, the newer ones later.

    Args:
        path: of metrics.jsonl; a file that is not there holds none.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [record for record in map(_record, lines) if record is not None]


def _record(line: bytes) -> Record | None:
    try:
        data: Any = json.loads(line)
        if not isinstance(data, dict):
            return None
        fixed = {name: data.pop(name) for name in _FIXED}
    except (ValueError, KeyError):
        return None
    return Record(**fixed, values=data)
