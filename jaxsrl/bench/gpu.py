"""`make gpu`: the tests and benchmarks that need an accelerator, in one command, recorded in docs/lab/accelerators.md.

Items are the tests in tests/gpu. Each file runs in its own process, and this process never uses the accelerator. Files that measure
nothing run side by side. An item that fails or ends its process becomes a row too, and the others still run. One deadline covers
all of them.
"""

import concurrent.futures
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from envpool_bridge.limits import count_cores
from jaxsrl.bench.processes import local_devices

_TABLE = Path("docs/lab/accelerators.md")
_ITEMS = Path("tests/gpu")
_GROUPS = (  # files of a group run side by side, groups one after the other; what measures time runs alone
    ("test_exactness.py", "test_processes.py", "test_reproducible_runs.py", "test_device.py"),
    ("test_speed.py",),
    ("test_agents.py",),
    ("test_calls.py",),
    ("test_beside_a_run.py",),
    ("test_learning.py",),
)
_SECONDS = 540.0
_ITEM_SECONDS = 400
_END_SECONDS = 10.0
_POLL_SECONDS = 0.1


def bench_gpu(files: tuple[str, ...] = ()) -> None:
    """Runs items and appends their rows to the table; without an accelerator it only prints a message.

    Args:
        files: names of files of items, run one after the other; all files by default.

    Raises:
        UserError: If a file is unknown.
        SystemExit: If an item failed, with status 1.
    """
    known = [name for group in _GROUPS for name in group]
    unknown = [name for name in files if name not in known]
    if unknown:
        raise UserError(f"expected names of files of {_ITEMS} ({', '.join(known)}): got {', '.join(unknown)}")
    groups = [(name,) for name in files] or _GROUPS
    environment = {**os.environ, "JAX_PLATFORMS": os.environ.get("JAXSRL_GPU_PLATFORMS", "")}
    platform, number, kind = local_devices(environment)
    if platform == "cpu":
        print("no accelerator here: jax sees only the CPU; nothing to run (install jaxsrl[cuda] or jaxsrl[tpu])")  # noqa: T201
        return
    ended = run_groups([[_ITEMS / name for name in group] for group in groups], time.time() + _SECONDS, environment)
    hardware = f"{number} x {kind}, {count_cores()} cores, jax {version('jax')}"
    rows = table_rows(ended, f"{datetime.date.today()} | {hardware}")
    with open(_TABLE, "a") as file:
        file.writelines(rows)
    failed = [item["ended"] for item in ended if item["outcome"] == "failed"]
    print("".join(rows) + f"{len(ended)} items, {len(failed)} failed: appended to {_TABLE}")  # noqa: T201
    if failed:
        sys.exit(1)


def run_groups(groups: Sequence[Sequence[Path]], deadline: float, environment: dict[str, str]) -> list[dict[str, Any]]:
    """Runs the items of each group of files, the files of a group side by side. Ctrl-C ends all of their processes.

    Returns:
        The reports that `run_items` returns, in the order of the files.
    """
    items: list[dict[str, Any]] = []
    stop = threading.Event()
    for group in groups:
        with concurrent.futures.ThreadPoolExecutor(len(group)) as threads:
            try:
                for reports in threads.map(lambda file: run_items(file, deadline, environment, stop), group):
                    items += reports
            except BaseException:
                stop.set()  # the threads end before the error leaves this function
                raise
    return items


def run_items(file: Path, deadline: float, environment: dict[str, str], stop: threading.Event) -> list[dict[str, Any]]:
    """Runs every item of a file in a process, and restarts the file without the item that ended its process.

    Args:
        file: File of tests.
        deadline: Deadline of all, in the time of `time.time()`.
        environment: Environment of the processes.
        stop: ends the process that runs, and no other starts.

    Returns:
        The report of each item: its id under "ended", outcome ("passed", "failed", "skipped"), message, rows and seconds.
    """
    items: list[dict[str, Any]] = []
    while True:
        reported, status = _run_once(file, [item["ended"] for item in items], deadline, environment, stop)
        collected = next((line["collected"] for line in reported if "collected" in line), None)
        ended = {line["ended"]: line for line in reported if "ended" in line}
        items += ended.values()
        if not collected:
            problem = f"items could not be collected: pytest ended with status {status}"
            return [*items, _ended(str(file), "failed", problem)]
        started = [line["started"] for line in reported if "started" in line]
        lost = [name for name in started if name not in ended]
        left = [name for name in collected if name not in ended and name not in lost]
        is_over = time.time() >= deadline
        if is_over:
            items += [_ended(name, "skipped", "not run: the deadline has passed") for name in left]
        items += [_ended(name, "failed", f"its process ended with status {status}") for name in lost]
        if is_over or stop.is_set() or not lost or not left:
            return items


def _run_once(
    file: Path, without: Sequence[str], deadline: float, environment: dict[str, str], stop: threading.Event
) -> tuple[list[dict[str, Any]], int]:
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.jsonl"
        # Processes that items start use the accelerator too.
        variables = {"JAXSRL_GPU_REPORT": str(report), "JAXSRL_GPU_DEADLINE": str(deadline - _END_SECONDS)}
        command = [sys.executable, "-m", "pytest", "-m", "gpu", str(file), "--timeout", str(_ITEM_SECONDS)]
        command += [f"--deselect={name}" for name in without]
        process = subprocess.Popen(
            command, env={**environment, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **variables}, start_new_session=True
        )
        try:
            end = max(time.time() + 1.0, deadline)
            while process.poll() is None and time.time() < end and not stop.wait(_POLL_SECONDS):
                pass
            status = -signal.SIGKILL if process.poll() is None else process.returncode
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        lines = report.read_text().splitlines() if report.exists() else []
    return [json.loads(line) for line in lines], status


def _ended(name: str, outcome: str, message: str) -> dict[str, Any]:
    return {"ended": name, "outcome": outcome, "message": message, "rows": [], "seconds": 0.0}


def table_rows(ended: Sequence[dict[str, Any]], begin: str) -> list[str]:
    """Returns the rows of the table, whose first cells are `begin`: those that an item measured, or one with its outcome."""
    rows: list[str] = []
    for item in ended:
        name = item["ended"].split("::", 1)[-1].removeprefix("test_").replace("_", " ")
        cells = [*item["rows"]]
        if item["outcome"] == "failed":
            cells.append([name, f"failed: {item['message']}", ""])
        elif item["outcome"] == "skipped":
            cells.append([name, item["message"], ""])
        elif not cells:
            cells.append([name, "passed", f"{item['seconds']:.0f} s"])
        rows += ["| " + " | ".join([begin, *(str(cell).replace("|", "/") for cell in each)]) + " |\n" for each in cells]
    return rows
