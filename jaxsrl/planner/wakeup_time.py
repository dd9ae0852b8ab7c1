"""Time to wake a process that sleeps at its doorbell. The inference server does so for every worker of a lane."""

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from envpool_bridge.shm.doorbell import Doorbell

_RINGS = 500
_PAUSE_SECONDS = 3e-4  # time for the sleeper to fall asleep again
_SLEEPER = """
import sys
from envpool_bridge.shm.doorbell import Doorbell, Waiter
waiter = Waiter(Doorbell(int(sys.argv[1])), watch=(sys.stdin.fileno(),))
print("listening", flush=True)
while True:
    waiter.wait(lambda: False, 60.0, woken=sys.exit)  # exits when its standard input is closed, for example because its parent died
"""


def measure_doorbell_seconds() -> float:
    """Returns the median seconds of a ring that wakes another process."""
    with _sleeper() as bell:
        times: list[float] = []
        for _ in range(_RINGS):
            pause = time.perf_counter() + _PAUSE_SECONDS
            while time.perf_counter() < pause:
                pass  # busy, like an inference server after its call
            start = time.perf_counter()
            bell.ring()
            times.append(time.perf_counter() - start)
    return statistics.median(times)


@contextlib.contextmanager
def _sleeper() -> Iterator[Doorbell]:
    """Starts a process that sleeps until its doorbell rings; yields the doorbell."""
    bell = Doorbell()
    command = [sys.executable, "-P", "-c", _SLEEPER, str(bell.descriptor)]
    try:
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=(bell.descriptor,)
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            yield bell
            assert process.stdin is not None
            process.stdin.close()
    finally:
        bell.close()
