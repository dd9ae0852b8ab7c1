"""What jax does to a process that has lost the others ends in our words and our status."""

import subprocess
import sys

import pytest

SETUP = """
import ctypes, threading
from jaxsrl.cluster.learners.abort_handler import AbortHandler
handler = AbortHandler(lambda: "another process was lost", 75)
handler.install()
abort = ctypes.CDLL(None).abort
"""


def ends(code: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", SETUP + code], capture_output=True, text=True, timeout=150, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("code", ["abort()", "t = threading.Thread(target=abort); t.start(); t.join()"])
def test_abort_in_any_thread_prints_the_cause_and_exits(code):
    assert ends(code) == (75, "error: another process was lost\n")


def test_once_removed_abort_is_what_it_was():
    assert ends("handler.remove(); abort()")[0] == -6


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ("RuntimeError('an environment failed')", 1),
        ("ReplayLostError('a node is gone')", 75),
        ("UserError('no such plan')", -6),
        ("None", -6),
    ],
    ids=["a run that failed", "a run that lost a node", "a refusal", "a good end"],
)
def test_jax_abort_after_a_failed_run_has_our_exit_status(error, status):
    code = f"""
import contextlib, gc, unittest.mock
from envpool_bridge.errors import UserError
from jaxsrl.cluster.learners.processes import Processes
from jaxsrl.cluster.protocol.engine import ReplayLostError
error = {error}
with contextlib.suppress(RuntimeError, ReplayLostError, UserError), Processes(1, 2, 1, unittest.mock.Mock()).together():
    if error is not None:
        raise error
gc.collect()
abort()
"""
    assert ends(code)[0] == status
