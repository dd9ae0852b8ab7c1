"""Auditor of a run's journals.

It proves that the learner consumed exactly the steps that the environments made: none lost, duplicated, changed or reordered.
`python -m tests.support.journal_audit DIRECTORY` prints one line of JSON and exits with status 1 if something is wrong.
"""

import dataclasses
import json
import re
import sys
from pathlib import Path

import numpy as np

from tests.support.journal import RECORD

_ENVIRONMENTS = re.compile(r"environments-(\d+)-(\d+)-(\d+)\.journal")
_LEARNER = re.compile(r"learner-(\d+)\.journal")


@dataclasses.dataclass
class Audit:
    """What the journals say. A step is one of a part: of the rows that a worker steps together.

    Attributes:
        consumed: steps that the learner has given back.
        transitions: valid steps of rows among them.
        cut: steps among them at which an episode was cut.
        deaths: worker processes that another one followed.
        in_flight: steps that a worker had made but not published when it died; its successor made them anew. At most one a part
            and death.
        unread: steps that the learner had not come to at the end.
        lost: steps that the learner should have seen.
        duplicated: steps that it saw twice.
        disordered: steps that came, or were made, in another order than theirs.
        torn: steps that it saw otherwise than they were made.
        unknown: steps that it saw and nobody made.
    """

    consumed: int = 0
    transitions: int = 0
    cut: int = 0
    deaths: int = 0
    in_flight: int = 0
    unread: int = 0
    lost: int = 0
    duplicated: int = 0
    disordered: int = 0
    torn: int = 0
    unknown: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong, and there is something that could be."""
        return self.consumed > 0 and not (self.lost + self.duplicated + self.disordered + self.torn + self.unknown)


def audit(directory: Path) -> Audit:
    """Compares the journals in a directory."""
    found = Audit()
    made: dict[tuple[int, int], list[np.ndarray]] = {}  # by pool and part: one array a worker process, in order
    read: dict[tuple[int, int], np.ndarray] = {}
    names = [(match, path) for path in directory.iterdir() if (match := _ENVIRONMENTS.fullmatch(path.name))]
    for match, path in sorted(names, key=lambda pair: tuple(int(number) for number in pair[0].groups())):
        found.deaths += int(match[3]) > 1
        for part, records in records_by_part(path):
            made.setdefault((int(match[1]), part), []).append(records)
    for path in directory.iterdir():
        if match := _LEARNER.fullmatch(path.name):
            read |= {(int(match[1]), part): records for part, records in records_by_part(path)}
    for key in made.keys() | read.keys():
        newest = newest_records(made.get(key, []), found)
        compare_read(newest, read.get(key, np.zeros(0, RECORD)), found)
    return found


def records_by_part(path: Path) -> list[tuple[int, np.ndarray]]:
    """(part, its records in order) of one journal; a record that was cut short at the end is left out."""
    data = path.read_bytes()
    records = np.frombuffer(data[: len(data) // RECORD.itemsize * RECORD.itemsize], RECORD)
    return [(int(part), records[records["part"] == part]) for part in np.unique(records["part"])]


def newest_records(lives: list[np.ndarray], found: Audit) -> dict[int, np.void]:
    """What the processes that served a part, one after the other, have made: by step, the record that counts.

    Args:
        lives: one array of records a process, in order.
        found: told of what is wrong.
    """
    newest: dict[int, np.void] = {}  # the record of each step that counts: the last
    for number, records in enumerate(lives):
        steps = records["step"]
        found.disordered += int((np.diff(steps) != 1).sum())
        if newest and number:
            # Only the last step of the one before may be made anew, and none may be left out.
            last = max(newest)
            found.in_flight += int(steps[0] == last)
            found.disordered += int(not last <= steps[0] <= last + 1)
        newest |= {int(record["step"]): record for record in records}
    return newest


def compare_read(newest: dict[int, np.void], read: np.ndarray, found: Audit) -> None:
    """Compares what was read of a part with what was made.

    Args:
        newest: as `newest_records` returns it.
        read: records of the learner's side, in order.
        found: told of the steps, and of what is wrong.
    """
    steps = read["step"]
    found.consumed += len(read)
    found.transitions += int(read["num_valid"].sum())
    found.cut += int(read["broken"].sum())
    found.duplicated += len(steps) - len(np.unique(steps))
    found.disordered += int((np.diff(steps) < 0).sum())
    if newest:
        end = int(steps.max()) + 1 if len(steps) else min(newest)
        found.lost += len(set(range(min(newest), end)) - set(steps.tolist()))
        found.unread += sum(step >= end for step in newest)
    for record in read:
        _compare_step(record, newest, found)


def _compare_step(record: np.void, made: dict[int, np.void], found: Audit) -> None:
    step = int(record["step"])
    if step not in made:
        found.unknown += 1
        return
    wanted = made[step]
    same = record["crc"] == wanted["crc"] and record["num_valid"] == wanted["num_valid"]
    # A cut marks its own step, and the one before as truncated, after those were written down. At the slot's end it cannot.
    after = made.get(step + 1)
    may_grow = bool(record["broken"]) or (after is not None and wanted["incarnation"] != after["incarnation"])
    may_grow = may_grow or bool(wanted["broken"]) or (after is not None and bool(after["broken"]))
    if may_grow:
        same = same and record["num_truncated"] >= wanted["num_truncated"]
    else:
        same = same and record["num_truncated"] == wanted["num_truncated"]
    found.torn += not same


def main() -> None:
    """The command."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        print("usage: python -m tests.support.journal_audit DIRECTORY", file=sys.stderr)
        sys.exit(2)
    found = audit(Path(sys.argv[1]))
    print(json.dumps({"clean": found.is_clean, **dataclasses.asdict(found)}))
    sys.exit(0 if found.is_clean else 1)


if __name__ == "__main__":
    main()
