"""What a run is doing, told from its files and from who holds its lock."""

import fcntl
import json
import os
import socket
import subprocess
import sys

import pytest

from jaxsrl.checkpoints.run_directory import LOCK, RunDirectory
from jaxsrl.runs.state import CRASHED, EMPTY, FINISHED, RUNNING, STOPPED, is_locked, run_state
from jaxsrl.runs.summary import checkpoint_steps, summarize

BEGAN = "2026-01-01 10:00:00 starts: 100 updates"
SAVED = "2026-01-01 10:01:00 checkpoint at update 50"
STOP = "2026-01-01 10:02:00 stopped by SIGINT at update 60, 600 env steps, 9.0 s"
RESUMED = "2026-01-01 10:03:00 resumes runs/x at update 60 of 100"
DONE = "2026-01-01 10:04:00 complete at update 100, 1000 env steps, 5.0 s"


@pytest.mark.parametrize(
    ("log", "update", "state"),
    [
        ([], 0, EMPTY),
        ([BEGAN], 0, CRASHED),
        ([BEGAN, SAVED], 55, CRASHED),
        ([BEGAN, SAVED, STOP], 60, STOPPED),
        ([BEGAN, SAVED, STOP, RESUMED], 70, CRASHED),
        ([BEGAN, STOP, RESUMED, DONE], 100, FINISHED),
        ([DONE, "2026-01-01 10:05:00 already complete"], 100, FINISHED),
        ([BEGAN, SAVED, STOP.replace("stopped by SIGINT", "stopped: requested by control")], 60, STOPPED),
        ([], 100, FINISHED),
        ([], 55, CRASHED),
    ],
)
def test_the_newest_event_of_the_log_tells_how_a_run_ended(tmp_path, log, update, state):
    assert run_state(tmp_path, log, update, 100) == state


def test_run_state_of_a_locked_run_is_running(tmp_path):
    with RunDirectory(tmp_path):
        assert run_state(tmp_path, [BEGAN, STOP], 60, 100) == RUNNING
    assert run_state(tmp_path, [BEGAN, STOP], 60, 100) == STOPPED


@pytest.mark.parametrize(
    ("machine", "log", "recent", "state"),
    [
        ("another", [BEGAN, SAVED], True, RUNNING),
        ("another", [BEGAN, SAVED, STOP, RESUMED], True, RUNNING),
        ("another", [BEGAN, SAVED], False, CRASHED),
        ("another", [BEGAN, SAVED, STOP], True, STOPPED),
        ("another", [BEGAN, DONE], True, FINISHED),
        (socket.gethostname(), [BEGAN, SAVED], True, CRASHED),
    ],
)
def test_run_of_another_machine_runs_while_it_writes(tmp_path, machine, log, recent, state):
    (tmp_path / LOCK).write_text(f"process 77 on {machine}, started 2026-01-01 10:00:00")
    assert run_state(tmp_path, log, 60, 100, recent) == state


@pytest.mark.parametrize(("interval", "age", "state"), [(2.0, 50, RUNNING), (2.0, 70, CRASHED), (20.0, 190, RUNNING)])
def test_recent_is_by_the_interval_of_the_records(tmp_path, interval, age, state):
    (tmp_path / LOCK).write_text("process 77 on another, started 2026-01-01 10:00:00")
    (tmp_path / "log.txt").write_text(BEGAN)
    config = {"experiment": {"run": {"metrics": {"interval_seconds": interval}}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert summarize(tmp_path, now=(tmp_path / "config.json").stat().st_mtime + age).state == state


def test_the_saved_number_of_updates_is_the_budget(tmp_path):
    run = {"num_envs": 4, "rollout_length": 16, "total_env_steps": 64_000, "gradient_steps": 5}
    for saved, updates in (({}, 1000), ({"num_updates": 100}, 100)):
        (tmp_path / "config.json").write_text(json.dumps({"experiment": {"run": run}, **saved}))
        (tmp_path / "checkpoints" / "100").mkdir(parents=True, exist_ok=True)
        summary = summarize(tmp_path)
        assert (summary.num_updates, summary.progress, summary.total_steps) == (updates, 100 / updates, 64 * updates)


def test_directories_named_by_other_digits_are_no_steps(tmp_path):
    for name in ("12", "\u00b2", "quarantine"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert checkpoint_steps(tmp_path) == [12]


def test_looking_never_takes_the_lock(tmp_path, monkeypatch):
    with RunDirectory(tmp_path):
        pass
    monkeypatch.setattr(fcntl, "flock", lambda *_: pytest.fail("a run that begins now would be refused"))
    assert not is_locked(tmp_path / LOCK)


def test_a_lock_that_another_file_has_is_not_this_runs(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with RunDirectory(tmp_path / "a"), RunDirectory(tmp_path / "b"):
        pass
    with RunDirectory(tmp_path / "a"):
        assert is_locked(tmp_path / "a" / LOCK)
        assert not is_locked(tmp_path / "b" / LOCK)


def test_is_locked_without_kernel_list_checks_the_process(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    lock, nowhere = tmp_path / LOCK, tmp_path / "no-list"
    for process, machine, expected in (
        (os.getpid(), socket.gethostname(), True),
        (dead.pid, socket.gethostname(), False),
        (os.getpid(), "another-machine", False),
    ):
        lock.write_text(f"process {process} on {machine}, started 2026-01-01 10:00:00")
        assert is_locked(lock, nowhere) is expected
    lock.write_text("nothing of the kind")
    assert not is_locked(lock, nowhere)


def test_is_locked_tolerates_other_device_numbers(tmp_path):
    lock = tmp_path / LOCK
    lock.write_text("process 4711 on somewhere, started 2026-01-01 10:00:00")
    inode = lock.stat().st_ino
    listed = tmp_path / "locks"
    listed.write_text(f"1: FLOCK  ADVISORY  WRITE 4711 aa:bb:{inode} 0 EOF\n")
    assert is_locked(lock, listed)
    listed.write_text(
        f"1: FLOCK  ADVISORY  WRITE 4712 aa:bb:{inode} 0 EOF\n1: POSIX  ADVISORY  WRITE 4711 aa:bb:{inode} 0 EOF\n"
    )
    assert not is_locked(lock, listed)
