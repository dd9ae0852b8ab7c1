"""Records of a run that is over, or still going on, from its metrics.jsonl."""

import dataclasses
import json
import math
import sys
from pathlib import Path

from jaxsrl.metrics.sinks import Record

_FIXED = tuple(field.name for field in dataclasses.fields(Record) if field.name != "values")
_NEEDED = ("update", "env_steps", "wall_seconds")
_FIRST = b'{"update"'  # how every record begins


def read_records(path: Path) -> list[Record]:
    """All records of the file, in its order; what is torn or no record is left out.

    A run that went on from an older checkpoint has the records of some updates twice, the newer ones later: `RecordFile` has
    each once.

    Args:
        path: of metrics.jsonl; a file that is not there holds none.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [_record(numbers) for line in lines if (numbers := parse_record(line)[0]) is not None]


def parse_record(line: bytes) -> tuple[dict[str, float] | None, bool]:
    """The numbers of a record by name, and whether the line is nothing but a record.

    A crash can tear a line, to whose beginning the next process appends a whole one: that one is told, and False.

    Args:
        line: of metrics.jsonl, with or without its end.

    Returns:
        None where there is no record: no JSON object, or one without a finite update, env_steps and wall_seconds.
    """
    numbers = _numbers(line)
    if numbers is not None:
        return numbers, True
    begin = line.rfind(_FIRST)
    return _numbers(line[begin:]) if begin > 0 else None, False


def _numbers(line: bytes) -> dict[str, float] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    numbers = {str(name): value for name, value in found.items() if _is_number(value)}
    return numbers if all(math.isfinite(numbers.get(name, math.nan)) for name in _NEEDED) else None


def _is_number(value: object) -> bool:
    """Whether it is one, and an integer not beyond all floats."""
    is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return is_whole or isinstance(value, float)


def _record(numbers: dict[str, float]) -> Record:
    update, env_steps, wall_seconds = (numbers[name] for name in _NEEDED)
    frames = numbers.get("frames", math.nan)
    values = {name: value for name, value in numbers.items() if name not in _FIXED}
    return Record(
        int(update), int(env_steps), int(frames if math.isfinite(frames) else env_steps), float(wall_seconds), values
    )
