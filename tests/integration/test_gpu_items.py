"""`make gpu` runs every item by itself, reports each, and ends in time; the items' code runs without an accelerator."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import jaxsrl.bench.gpu
from jaxsrl.bench.gpu import run_groups, run_items, table_rows
from tests.gpu.train_command import HEEDS_INTERRUPTS

ROOT = Path(__file__).parents[2]
MARK = "import os, time\nimport pytest\npytestmark = pytest.mark.gpu\n"
ENVIRONMENT = {**os.environ, "JAXSRL_GPU_DRY": "1"}


def files(directory: Path, **sources: str) -> list[Path]:
    shutil.copy(ROOT / "tests" / "gpu" / "conftest.py", directory / "conftest.py")
    for name, source in sources.items():
        (directory / f"test_{name}.py").write_text(MARK + source)
    return [directory / f"test_{name}.py" for name in sources]


def test_failed_gpu_items_are_rows_and_others_run(tmp_path):
    found = files(
        tmp_path,
        one="""
def test_first(row): row("what", "5 ms", "a | b")
def test_fails(): assert 1 == 2, "not equal"
def test_dies(): os._exit(7)
def test_after(): pass
def test_needs_two(): pytest.skip("needs several devices")
@pytest.mark.seconds(1e9)
def test_long(): raise AssertionError("never started")
""",
        two="def test_other(size, row): row('size', size(10, 1))\n",
    )
    ended = run_groups([[file] for file in found], time.time() + 300, ENVIRONMENT)
    rows = [line.split(" | ", 1)[1].rstrip(" |\n") for line in table_rows(ended, "today")]
    outcomes = {item["ended"].split("::")[1]: item["outcome"] for item in ended}
    assert outcomes == {
        "test_first": "passed",
        "test_fails": "failed",
        "test_dies": "failed",
        "test_after": "passed",
        "test_needs_two": "skipped",
        "test_long": "skipped",
        "test_other": "passed",
    }
    assert "what | 5 ms | a / b" in rows
    assert any(line.startswith("fails | failed: ") and "not equal" in line for line in rows)
    assert "dies | failed: its process ended with status 7" in rows
    assert any(line.startswith("after | passed") for line in rows)
    assert any(line.startswith("long | not run: it needs 1000000000.0 s") for line in rows)
    assert "size | 1" in rows


@pytest.mark.slow
def test_hung_gpu_item_is_killed_and_later_ones_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(jaxsrl.bench.gpu, "_END_SECONDS", -1e9)  # no item is skipped because of the time it needs
    (file,) = files(tmp_path, hangs="def test_hangs(): time.sleep(3600)\ndef test_never(): pass\n")
    _, status = jaxsrl.bench.gpu._run_once(file, (), time.time() + 5, ENVIRONMENT, threading.Event())
    assert status == -signal.SIGKILL

    lines = [{"collected": ["f::test_hangs", "f::test_never"]}, {"started": "f::test_hangs"}]
    monkeypatch.setattr(jaxsrl.bench.gpu, "_run_once", lambda *_: (lines, -9))
    ended = run_items(file, time.time() - 1, ENVIRONMENT, threading.Event())
    assert {item["ended"]: (item["outcome"], item["message"]) for item in ended} == {
        "f::test_never": ("skipped", "not run: the deadline has passed"),
        "f::test_hangs": ("failed", "its process ended with status -9"),
    }


def test_groups_run_side_by_side_and_later_ones_wait(tmp_path):
    waits = "def test_{0}():\n    open(r'{1}/{0}', 'w').close()\n    end = time.time() + 60\n"
    waits += "    while not os.path.exists(r'{1}/{2}'):\n        assert time.time() < end\n        time.sleep(0.05)\n"
    one, two, three = files(
        tmp_path,
        one=waits.format("one", tmp_path, "two"),
        two=waits.format("two", tmp_path, "one"),
        three=f"def test_three(): assert os.path.exists(r'{tmp_path}/two')\n",
    )
    ended = run_groups([[one, two], [three]], time.time() + 300, ENVIRONMENT)
    assert [(item["ended"].split("::")[1], item["outcome"]) for item in ended] == [
        ("test_one", "passed"), ("test_two", "passed"), ("test_three", "passed"),
    ]  # fmt: skip


def test_ctrl_c_ends_the_processes_of_a_group(tmp_path):
    (file,) = files(
        tmp_path, hangs=f"def test_hangs():\n    open(r'{tmp_path}/on', 'w').close()\n    time.sleep(300)\n"
    )
    program = f"""
import os, time
from pathlib import Path
from jaxsrl.bench.gpu import run_groups
run_groups([[Path({str(file)!r})]], time.time() + 300, dict(os.environ))
"""
    command = [sys.executable, "-c", HEEDS_INTERRUPTS, sys.executable, "-c", program]
    process = subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    try:
        while not (tmp_path / "on").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
    finally:
        process.kill()
        process.wait()


def test_every_file_of_items_is_run():
    listed = sorted(name for group in jaxsrl.bench.gpu._GROUPS for name in group)
    assert listed == sorted(file.name for file in (ROOT / "tests" / "gpu").glob("test_*.py"))


def test_a_file_that_cannot_be_imported_is_a_failed_item(tmp_path):
    (ended,) = run_groups([files(tmp_path, broken="import no_such_module\n")], time.time() + 300, ENVIRONMENT)
    assert ended["outcome"] == "failed"
    assert "could not be collected" in ended["message"]


def test_failures_are_the_exit_status_and_all_rows_are_appended(tmp_path, monkeypatch, capsys):
    table = tmp_path / "benchmarks.md"
    table.write_text("| date | hardware | what | result | notes |\n|---|---|---|---|---|\n")
    items = [
        {"ended": "f::test_a_b", "outcome": "passed", "message": "", "rows": [], "seconds": 3.2},
        {"ended": "f::test_c", "outcome": "failed", "message": "it broke", "rows": [["c", "4 ms", ""]], "seconds": 0.1},
    ]
    monkeypatch.setattr(jaxsrl.bench.gpu, "_TABLE", table)
    monkeypatch.setattr(jaxsrl.bench.gpu, "local_devices", lambda environment: ("gpu", 1, "H"))
    monkeypatch.setattr(jaxsrl.bench.gpu, "run_groups", lambda *_: items)
    with pytest.raises(SystemExit) as ended:
        jaxsrl.bench.gpu.bench_gpu()
    assert ended.value.code == 1
    lines = table.read_text().splitlines()[2:]
    assert all(line.split(" | ")[1].startswith("1 x H, ") for line in lines)
    assert [line.split(" | ")[2:] for line in lines] == [
        ["a b", "passed", "3 s |"],
        ["c", "4 ms", " |"],
        ["c", "failed: it broke", " |"],
    ]
    assert all(line.count("|") == 6 for line in lines)
    assert "2 items, 1 failed" in capsys.readouterr().out


def dry_run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "tests/gpu", "--timeout", "600", "-q", *arguments]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=3600, check=False)


@pytest.mark.slow
def test_some_items_run_without_an_accelerator():
    done = dry_run("-k", "place_a_slot or checkpoint_of_replay or not_finite")
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.slow
def test_all_items_run_without_an_accelerator():
    done = dry_run()
    assert done.returncode == 0, done.stdout[-6000:]
