"""Commands whose process ends with the process that starts them, however that ends."""

import os
import sys
from collections.abc import Sequence

# A function that runs between fork and exec would run jax's handlers of forks, which warn.
_PROGRAM = """
import ctypes, os, sys
PR_SET_PDEATHSIG, SIGKILL = 1, 9
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def bound_command(command: Sequence[str]) -> list[str]:
    """Returns a command that runs `command`, whose first entry is a path; the kernel kills it when the calling thread ends."""
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, str(os.getpid()), *command]
