"""Auditor of the journals of a run on a cluster.

The directory holds the learner's journals, one per host, and one directory per incarnation of each host (`host-0-1` and so on).
`python -m tests.support.cluster_audit DIRECTORY` prints one line of JSON and exits with status 1 if something is wrong.
"""

import dataclasses
import json
import re
import sys
from pathlib import Path

import numpy as np

from tests.support.journal import RECORD
from tests.support.journal_audit import Audit, compare_read, newest_records, records_by_part

_HOST = re.compile(r"host-(\d+)-(\d+)")
_ENVIRONMENTS = re.compile(r"environments-(\d+)-(\d+)-(\d+)\.journal")
_LEARNER = re.compile(r"learner-(\d+)\.journal")

Key = tuple[int, int]
"""First row of a host's pool, and a part of it."""


@dataclasses.dataclass
class ClusterAudit(Audit):
    """As Audit, whose processes are those of one host; and across hosts.

    Attributes:
        hosts_followed: beginnings of hosts that another one followed.
        remade: steps that a lost host had made and not handed over, and its successor made anew.
    """

    hosts_followed: int = 0
    remade: int = 0


def audit_cluster(directory: Path) -> ClusterAudit:
    """Compares the journals below a directory."""
    found = ClusterAudit()
    made: dict[Key, list[dict[int, np.void]]] = {}  # one an incarnation of the host, in order
    for place in sorted((path for path in directory.iterdir() if _HOST.fullmatch(path.name)), key=_numbers):
        for key, lives in _lives(place, found).items():
            made.setdefault(key, []).append(newest_records(lives, found))
    read: dict[Key, np.ndarray] = {}
    for path in directory.iterdir():
        if match := _LEARNER.fullmatch(path.name):
            read |= {(int(match[1]), part): records for part, records in records_by_part(path)}
    for key in made.keys() | read.keys():
        newest = _newest_of_beginnings(made.get(key, []), found)
        compare_read(newest, read.get(key, np.zeros(0, RECORD)), found)
    found.hosts_followed = sum(len(one) - 1 for key, one in made.items() if key[1] == 0)
    return found


def _numbers(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in path.name.split("-")[1:])


def _lives(place: Path, found: Audit) -> dict[Key, list[np.ndarray]]:
    """What the worker processes of one incarnation of a host wrote, one array each, by part."""
    lives: dict[Key, list[np.ndarray]] = {}
    names = [(match, path) for path in place.iterdir() if (match := _ENVIRONMENTS.fullmatch(path.name))]
    for match, path in sorted(names, key=lambda pair: tuple(int(number) for number in pair[0].groups())):
        found.deaths += int(match[3]) > 1
        for part, records in records_by_part(path):
            lives.setdefault((int(match[1]), part), []).append(records)
    return lives


def _newest_of_beginnings(beginnings: list[dict[int, np.void]], found: ClusterAudit) -> dict[int, np.void]:
    """The record of each step that counts: from where a host was followed, only its successor's do."""
    newest: dict[int, np.void] = {}
    for steps in beginnings:
        if not steps:
            continue
        begin = min(steps)
        gone = [step for step in newest if step >= begin]
        found.remade += len(gone)
        for step in gone:
            del newest[step]
        found.disordered += int(bool(newest) and max(newest) + 1 != begin)  # it left some out
        newest |= steps
    return newest


def main() -> None:
    """The command."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        print("usage: python -m tests.support.cluster_audit DIRECTORY", file=sys.stderr)
        sys.exit(2)
    found = audit_cluster(Path(sys.argv[1]))
    print(json.dumps({"clean": found.is_clean, **dataclasses.asdict(found)}))
    sys.exit(0 if found.is_clean else 1)


if __name__ == "__main__":
    main()
