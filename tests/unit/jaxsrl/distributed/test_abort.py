"""What jax does to a process that has lost the others ends in our words and our status."""

import subprocess
import sys

import pytest

SETUP = """
import ctypes, threading
from jaxsrl.distributed.abort import AbortHandler
handler = AbortHandler(lambda: "another process was lost", 75)
handler.install()
abort = ctypes.CDLL(None).abort
"""


def ends(code: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", SETUP + code], capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("code", ["abort()", "t = threading.Thread(target=abort); t.start(); t.join()"])
def test_abort_of_any_thread_says_what_happened_and_exits_with_the_status(code):
    assert ends(code) == (75, "error: another process was lost\n")


def test_once_removed_abort_is_what_it_was():
    assert ends("handler.remove(); abort()")[0] == -6
