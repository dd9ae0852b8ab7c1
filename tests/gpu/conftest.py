"""Items of `make gpu`: each test is a row of docs/lab/accelerators.md. `jaxsrl.bench.gpu` reads what is written here.

With JAXSRL_GPU_DRY=1 every item runs at a tiny size on whatever jax has, so that the code is tried without an accelerator.
"""

import json
import os
import time
from pathlib import Path

import pytest

DRY = bool(os.environ.get("JAXSRL_GPU_DRY"))
_SECONDS = 20  # of an item that says nothing


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "seconds(number): that an item takes on one GPU; it is not started with less left"
    )


def _report(**what):
    path = os.environ.get("JAXSRL_GPU_REPORT")
    if path:
        with open(path, "a") as file:
            file.write(json.dumps(what) + "\n")


def pytest_collection_modifyitems(items):
    # pytest passes the items of all folders.
    ours = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    if DRY or not ours:
        return
    import jax

    if jax.default_backend() == "cpu":
        for item in ours:
            item.add_marker(pytest.mark.skip(reason="needs an accelerator: jax sees only the CPU"))


def pytest_collection_finish(session):
    _report(collected=[item.nodeid for item in session.items])


def pytest_runtest_setup(item):
    _report(started=item.nodeid)
    marker = item.get_closest_marker("seconds")
    needed = marker.args[0] if marker else _SECONDS
    if time.time() + needed > float(os.environ.get("JAXSRL_GPU_DEADLINE", "inf")):
        pytest.skip(f"not run: it needs {needed} s, which were not left")


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        message = ""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = (crash.message if crash else str(report.longrepr)).strip().splitlines()[0]
        if report.skipped:
            message = str(report.longrepr[2]).removeprefix("Skipped: ")
        rows = [value for name, value in report.user_properties if name == "row"]
        _report(ended=report.nodeid, outcome=report.outcome, message=message, rows=rows, seconds=report.duration)


@pytest.fixture
def row(record_property):
    """Records a row of the table: what was measured, its result, and notes."""
    return lambda what, result, notes="": record_property("row", [what, result, notes])


@pytest.fixture
def size():
    """Chooses between the size of an item on an accelerator and that of a dry run."""
    return lambda full, tiny: tiny if DRY else full
