"""Names in /dev/shm that the tests of one process answer for: other tests, and other programs, run beside them."""

import os
import re
from pathlib import Path

_NAME = re.compile(r"(?:sem\.)?jaxsrl-(\d+)-[0-9a-f]+")


def names_left() -> set[str]:
    """Returns the names that this process has, and those of processes that have ended.

    Names of living processes belong to a test beside this one, or to another program.
    """
    found = set()
    for name in os.listdir("/dev/shm"):
        match = _NAME.fullmatch(name)
        if match is not None and (int(match[1]) == os.getpid() or not Path("/proc", match[1]).exists()):
            found.add(name)
    return found
