"""What is written down, and whether the auditor sees what is wrong with it."""

import json
import subprocess
import sys

import numpy as np
import pytest

from envpool_bridge.errors import UserError
from tests.chaos.counting import SHAPE, begin, check, collect, kill, make_pool
from tests.support.journal import RECORD, Journal, journal_in
from tests.support.journal_audit import audit

ENV, LEARNER = "environments-0-{}-{}.journal", "learner-0.journal"


def records(steps, incarnation=1, part=0, **changes):
    fields = {"crc": 7, "num_valid": 3, "num_truncated": 0, "broken": 0} | changes
    found = np.zeros(len(steps), RECORD)
    found["step"], found["incarnation"], found["part"] = steps, incarnation, part
    for name, value in fields.items():
        found[name] = value
    return found


def write(directory, lives, read):
    for number, life in enumerate(lives):
        (directory / ENV.format(0, number + 1)).write_bytes(life.tobytes())
    (directory / LEARNER).write_bytes(read.tobytes())


def concatenated(*parts):
    return np.concatenate(parts)


def test_audit_counts_a_repeated_step_as_in_flight(tmp_path):
    lives = [records(range(8)), records(range(7, 20), 2, broken=0)]
    lives[1]["broken"][0], lives[1]["num_truncated"][0] = 1, 2
    read = concatenated(lives[0][:7], lives[1][:9])
    read["num_truncated"][6] = 2  # the cut has ended the episode at the step before it
    write(tmp_path, lives, read)
    found = audit(tmp_path)
    assert found.is_clean
    assert (found.consumed, found.transitions, found.in_flight, found.deaths, found.cut, found.unread) == (
        16,
        48,
        1,
        1,
        1,
        4,
    )


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lambda read: np.delete(read, 5), "lost"),
        (lambda read: concatenated(read[:6], read[5:]), "duplicated"),
        (lambda read: read[[0, 1, 2, 4, 3, *range(5, 16)]], "disordered"),
        (lambda read: concatenated(read[:5], records([5], crc=8), read[6:]), "torn"),
        (lambda read: concatenated(read[:5], records([5], num_truncated=1), read[6:]), "torn"),
        (lambda read: concatenated(read, records(range(16, 25))), "unknown"),
    ],
)
def test_audit_reports_every_kind_of_damage(spoil, kind, tmp_path):
    made = records(range(20))
    write(tmp_path, [made], spoil(made[:16]))
    found = audit(tmp_path)
    assert not found.is_clean
    assert getattr(found, kind) > 0


@pytest.mark.parametrize("begins", [5, 9])
def test_audit_reports_a_successor_at_a_wrong_step(begins, tmp_path):
    made = [records(range(8)), records(range(begins, 20), 2)]
    write(tmp_path, made, records(range(16)))
    assert audit(tmp_path).disordered == 1


def test_journals_of_nothing_prove_nothing(tmp_path):
    assert not audit(tmp_path).is_clean


def test_journals_of_another_run_are_not_appended_to(tmp_path):
    Journal(tmp_path / LEARNER).close()
    with pytest.raises(UserError, match="expected a directory without journals"):
        make_pool(SHAPE, journal=journal_in(tmp_path))


def test_a_pool_whose_worker_was_killed_passes_the_audit(tmp_path):
    def disturb(pool, sequence):
        if sequence == 2:
            kill(pool, 0)

    with make_pool(SHAPE, journal=journal_in(tmp_path / "journals")) as pool:
        begin(pool)
        valid, cuts = check(collect(pool, 6, disturb))
    command = [sys.executable, "-m", "tests.support.journal_audit", str(tmp_path / "journals")]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found["clean"]
    assert (found["consumed"], found["transitions"]) == (6 * 8 * 2, valid)
    assert cuts > 0
    assert (found["cut"], found["deaths"]) == (1, 1)
