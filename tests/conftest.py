"""Strict numerics, four host devices, and a check that no test leaves anything behind."""

import gc
import os
import platform
import shutil
import signal
import threading
import time
from importlib.metadata import version
from pathlib import Path

# Before jax is imported: multi-device code is tested on four devices of the host.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the unit tests' time is spent in compiling small programs, which takes a quarter of the time without optimization. Without
# fused multiply-adds (AVX has none) programs that differ still agree to the bit where the optimized ones do. `make test` asks for
# this wherever not the programs themselves are in question; `make test-all` tests what users run.
if os.environ.get("JAXSRL_TEST_COMPILE") == "quick" and platform.machine() == "x86_64":
    os.environ["XLA_FLAGS"] += " --xla_backend_optimization_level=0 --xla_cpu_max_isa=AVX"
    if version("jaxlib").startswith("0.10."):  # later ones end the process at this flag, without a word
        os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
# Shells make jobs in the background ignore Ctrl-C, and so would the commands that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# The same few programs are compiled by many tests, and by the processes that they start: most of the suite's time without this.
_PROGRAMS = Path(__file__).parents[1] / ".pytest_cache" / "jax_programs"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_PROGRAMS))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# With jax's size limit, each process that writes a program reads the age of all others under one lock: a quarter of a second for a
# thousand programs. Without one, a process may see half a program; it warns and compiles.
_MOST_BYTES = 500_000_000

import pytest
from hypothesis import settings

from tests.lint.slow_tests import slow_tests
from tests.shared_names import names_left

# Processes and threads that have been ended may take their time where others compute; only a failing test waits so long.
_GRACE_SECONDS = 60.0
# How long an example of a property takes depends on the machine.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
# What is imported stays: looking through it for garbage, again and again while it grows, takes a quarter of the time of collecting.
gc.disable()


def pytest_configure(config):
    """Removes the compiled programs of many versions of the code, before processes share them."""
    if not hasattr(config, "workerinput") and sum(path.stat().st_size for path in _PROGRAMS.glob("*")) > _MOST_BYTES:
        shutil.rmtree(_PROGRAMS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks the tests of slow.txt, which `make test` skips."""
    slow = slow_tests()
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """From here on there is garbage, but none of it among what was imported."""
    gc.freeze()
    gc.enable()


def _children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found |= {int(pid) for pid in (task / "children").read_text().split()}
        except (FileNotFoundError, ProcessLookupError):
            pass  # a thread that ended since it was listed; its children are another thread's now
    return found


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.daemon}


@pytest.fixture(autouse=True)
def leaves_nothing_behind():
    """Fails a test after which a child process, a name in /dev/shm or a thread is left."""
    children, names, threads = _children(), names_left(), _threads()
    yield
    deadline = time.monotonic() + _GRACE_SECONDS
    while True:
        left = {
            "child processes": _children() - children,
            "names in /dev/shm": names_left() - names,
            "threads": _threads() - threads,
        }
        if not any(left.values()):
            return
        if time.monotonic() > deadline:
            pytest.fail(f"the test left behind: { {what: items for what, items in left.items() if items} }")
        time.sleep(0.02)
