"""Names in /dev/shm that the tests of one process own; other tests and programs run at the same time."""

import os
import re
from pathlib import Path

_NAME = re.compile(r"(?:sem\.)?jaxsrl-(\d+)-[0-9a-f]+")


def names_left() -> set[str]:
    """Returns the names of this process, and those of processes that have ended.

    Names of living processes belong to other tests or programs.
    """
    found = set()
    for name in os.listdir("/dev/shm"):
        match = _NAME.fullmatch(name)
        if match is not None and (int(match[1]) == os.getpid() or not Path("/proc", match[1]).exists()):
            found.add(name)
    return found
