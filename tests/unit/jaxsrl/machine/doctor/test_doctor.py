"""The doctor: what a machine lacks is said with what to do; what dead runs left is found, and what lives is left alone."""

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

import jaxsrl.cli.main
from jaxsrl.machine.doctor import checks
from jaxsrl.machine.doctor import report as report_module
from jaxsrl.machine.doctor.checks import check_open_files, check_packages, check_python, check_shared_memory, run_checks
from jaxsrl.machine.doctor.leftovers import Leftover, find_leftovers
from jaxsrl.machine.doctor.report import Report


def dead_process() -> int:
    """Number of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.fixture
def machine(tmp_path):
    """Directories that stand for runs, names of shared memory, and processes."""
    for name in ("runs", "shm", "proc", "tmp"):
        (tmp_path / name).mkdir()
    return tmp_path


def found_on(machine, clean=False):
    return find_leftovers(machine / "runs", clean, machine / "shm", machine / "proc", [machine / "tmp"])


def test_this_machine_is_well():
    assert [check.name for check in run_checks() if not check.is_well] == []


def test_a_python_too_old_is_named():
    check = check_python((3, 9))
    assert (check.is_well, check.advice) == (False, "install Python 3.11 or newer")


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(checks, "PACKAGES", ("numpy", "no-such-package"))
    check = check_packages()
    assert not check.is_well
    assert check.advice == "pip install no-such-package"


def test_too_little_shared_memory_is_said_with_a_remedy():
    check = check_shared_memory(2**60)
    assert not check.is_well
    assert "--shm-size" in check.advice


def test_too_few_open_files_are_said():
    assert check_open_files(2**40).advice == f"ulimit -n {2**40}"


def test_failing_check_does_not_stop_the_others(monkeypatch):
    def broken():
        raise OSError("no such thing")

    monkeypatch.setattr(checks, "CHECKS", {"broken": broken, "python": check_python})
    first, second = run_checks()
    assert (first.is_well, first.finding, second.is_well) == (False, "OSError: no such thing", True)


def test_clean_removes_only_shared_memory_of_dead_processes(machine):
    dead, alive, other = (machine / "shm" / name for name in ("jaxsrl-11-ab", "jaxsrl-12-ab", "somebody-11-ab"))
    for path in (dead, alive, other):
        path.touch()
    (machine / "proc" / "12").mkdir()
    assert found_on(machine) == [Leftover("shared memory", str(dead))]
    assert dead.exists()
    assert found_on(machine, clean=True) == [Leftover("shared memory", str(dead), removed=True)]
    assert sorted(path.name for path in (machine / "shm").iterdir()) == ["jaxsrl-12-ab", "somebody-11-ab"]


def test_a_worker_without_its_main_process_is_found(machine):
    number = dead_process()
    for name, parent, command in (
        (str(number), 1, b"python\0-c\0from envpool_bridge.supervisor.forkserver"),
        ("7", 6, b"sh"),
    ):
        (machine / "proc" / name).mkdir()
        (machine / "proc" / name / "cmdline").write_bytes(command)
        (machine / "proc" / name / "stat").write_text(f"{name} (pyth) on) S {parent} 1 1")
    assert found_on(machine, clean=True) == [Leftover("process", str(number), removed=True)]


def test_workers_of_a_run_that_is_process_1_are_left_alone(machine):
    for name, parent, starter in (
        ("20", 1, 1),
        ("21", 20, 1),
        ("22", 1, 12),
    ):  # a live run's server, its worker, an orphan
        (machine / "proc" / name).mkdir()
        command = f"python\0-c\0from envpool_bridge.supervisor.forkserver\0[]\0005\0{starter}\0"
        (machine / "proc" / name / "cmdline").write_bytes(command.encode())
        (machine / "proc" / name / "stat").write_text(f"{name} (python) S {parent} 1 1")
    assert found_on(machine) == [Leftover("process", "22")]


def test_clean_removes_partial_checkpoints_of_dead_runs(machine):
    for name in ("dead", "alive"):
        (machine / "runs" / name / "checkpoints" / ".12.tmp").mkdir(parents=True)
        (machine / "runs" / name / "checkpoints" / "10").mkdir()
    (machine / "runs" / "dead" / ".lock").touch()
    with open(machine / "runs" / "alive" / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = found_on(machine, clean=True)
    assert [left.what for left in found] == [str(machine / "runs" / "dead" / "checkpoints" / ".12.tmp")]
    assert (machine / "runs" / "alive" / "checkpoints" / ".12.tmp").exists()
    assert (machine / "runs" / "dead" / "checkpoints" / "10").exists()


def a_clusters_files(machine, name, age_seconds=3600.0):
    """A directory as a local cluster makes it, that long ago."""
    path = machine / "tmp" / name
    path.mkdir()
    (path / "nodes.log").touch()
    made = time.time() - age_seconds
    os.utime(path, (made, made))
    return path


def test_clean_removes_files_of_dead_clusters(machine):
    dead, alive = (a_clusters_files(machine, f"jaxsrl-ray-{name}") for name in ("dead_123", "alive_12"))
    (machine / "proc" / "12").mkdir()
    (machine / "proc" / "12" / "cmdline").write_bytes(b"raylet\0--session_dir=%s/session" % os.fsencode(alive))
    assert found_on(machine) == [Leftover("files of a local cluster", str(dead))]
    assert dead.exists()
    assert found_on(machine, clean=True) == [Leftover("files of a local cluster", str(dead), removed=True)]
    assert [path.name for path in (machine / "tmp").iterdir()] == [alive.name]


def test_clean_spares_starting_and_foreign_clusters(machine, monkeypatch):
    a_clusters_files(machine, "jaxsrl-ray-justmade", age_seconds=1.0)
    a_clusters_files(machine, "jaxsrl-ray-of-somebody")
    (machine / "tmp" / "jaxsrl-ray-pointing").symlink_to(a_clusters_files(machine, "elsewhere"))
    assert found_on(machine, clean=True) == []
    old = a_clusters_files(machine, "jaxsrl-ray-12345678")
    assert [left.what for left in found_on(machine)] == [str(old)]
    monkeypatch.setattr(os, "getuid", lambda: 12345)  # another user's
    assert found_on(machine, clean=True) == []
    assert len(list((machine / "tmp").iterdir())) == 5


def test_clean_spares_clusters_that_answer_on_a_socket(machine, monkeypatch):
    monkeypatch.chdir(machine)  # the length of a socket's path is limited
    with contextlib.ExitStack() as ends:
        for name in ("dead_123", "alive_12"):
            sockets = a_clusters_files(machine, f"jaxsrl-ray-{name}") / "ray" / "session_2026-01-01_1_1" / "sockets"
            sockets.mkdir(parents=True)
            end = ends.enter_context(socket.socket(socket.AF_UNIX))
            end.bind(str((sockets / "raylet").relative_to(machine)))
            if name == "dead_123":
                end.close()
            else:
                end.listen(0)
            os.utime(sockets.parents[2], (1.0, 1.0))
        found = [find_leftovers(Path("runs"), True, Path("shm"), Path("proc"), [Path("tmp")]) for _ in range(4)]
    assert [[left.what for left in each] for each in found] == [["tmp/jaxsrl-ray-dead_123"], [], [], []]
    assert [path.name for path in (machine / "tmp").iterdir()] == ["jaxsrl-ray-alive_12"]


def refuse(*args, **options):
    raise PermissionError(1, "Operation not permitted")


def test_clean_goes_on_after_what_it_may_not_remove(machine, monkeypatch):
    (machine / "proc" / "20").mkdir()
    (machine / "proc" / "20" / "cmdline").write_bytes(b"python\0-c\0from envpool_bridge.supervisor.forkserver")
    (machine / "proc" / "20" / "stat").write_text("20 (python) S 1 1 1")
    (machine / "runs" / "a" / "checkpoints" / ".12.tmp").mkdir(parents=True)
    (machine / "runs" / "a" / ".lock").touch()
    (machine / "shm" / "jaxsrl-11-ab").touch()
    dead = a_clusters_files(machine, "jaxsrl-ray-dead_123")
    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(type(machine), "unlink", refuse)
    assert [left.removed for left in found_on(machine, clean=True)] == [False, False, True, True]
    assert not dead.exists()


def test_locks_that_may_only_be_read_hide_no_leftovers(machine, monkeypatch):
    run = machine / "runs" / "a"
    (run / "checkpoints" / ".12.tmp").mkdir(parents=True)
    (run / ".lock").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr("builtins.open", partial(open_only_to_read, open))
    assert [left.kind for left in found_on(machine)] == ["unfinished checkpoint"]
    (run / ".lock").unlink()
    assert found_on(machine) == []


def open_only_to_read(opened, file, mode="r", *args, **options):
    return refuse() if "a" in mode else opened(file, mode, *args, **options)


def test_a_report_is_well_when_all_is_and_nothing_is_left():
    assert Report([check_python()], []).is_well
    assert not Report([check_python((2, 7))], []).is_well
    assert not Report([], [Leftover("process", "7")]).is_well
    assert Report([], [Leftover("process", "7", removed=True)]).is_well


def test_command_reports_json_and_exit_status(machine, capsys, monkeypatch):
    # Not this machine's own: other runs may leave processes there, and `--clean` would kill them.
    monkeypatch.setattr(
        report_module,
        "find_leftovers",
        lambda runs, clean: find_leftovers(runs, clean, machine / "shm", machine / "proc", [machine / "tmp"]),
    )
    monkeypatch.setattr(checks, "CHECKS", {"python": check_python})
    (machine / "runs" / "r" / "checkpoints" / ".3.tmp").mkdir(parents=True)
    (machine / "runs" / "r" / ".lock").touch()
    with pytest.raises(SystemExit) as ended:
        jaxsrl.cli.main.main(["doctor", "--runs", str(machine / "runs"), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (ended.value.code, report["is_well"], len(report["leftovers"])) == (1, False, 1)
    jaxsrl.cli.main.main(["doctor", "--runs", str(machine / "runs"), "--clean"])  # returns: status 0
    assert not os.listdir(machine / "runs" / "r" / "checkpoints")
    assert "removed" in capsys.readouterr().out
