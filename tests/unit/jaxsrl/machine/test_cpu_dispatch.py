"""In processes of their own: jax decides once, when it begins to use its devices, how programs are run."""

import subprocess
import sys

import pytest

_CALLS = 200
_WAKE_UPS = """
import os, time
import jax, numpy as np
{settings}
program = jax.jit(lambda matrix: matrix @ matrix)
values = np.ones((64, 64), np.float32)
def wake_ups():
    found = 0
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            with open("/proc/self/task/" + task + "/status") as file:
                found += sum(int(line.split()[1]) for line in file if line.startswith("voluntary"))
    return found
program(values).block_until_ready()
before = wake_ups()
for _ in range({calls}):
    program(values).block_until_ready()
    end = time.perf_counter() + 2e-4  # long enough for a thread to fall asleep
    while time.perf_counter() < end:
        pass
print(wake_ups() - before)
"""


def wake_ups_of_other_threads(settings: str) -> int:
    """In so many calls of a small program."""
    script = _WAKE_UPS.format(settings=settings, calls=_CALLS)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=150)
    return int(done.stdout)


@pytest.mark.parametrize(
    "settings",
    [
        "from jaxsrl.machine.cpu_dispatch import use_synchronous_cpu_dispatch; use_synchronous_cpu_dispatch()",
        pytest.param("from jaxsrl.machine.resources import Resources; Resources.detect()", marks=pytest.mark.slow),
        pytest.param(
            "from jaxsrl.collect.acting_agent import use_jax_settings; from jaxsrl.collect.actors.policy import start_jax\n"
            "use_jax_settings({}); start_jax(0)",
            marks=pytest.mark.slow,
        ),
        "import contextlib; from jaxsrl.experiment import Experiment, cli\n"
        "with contextlib.suppress(SystemExit): cli(Experiment(lambda: None, None), [])",
    ],
)
def test_synchronous_dispatch_wakes_no_thread(
    settings: str,
) -> None:
    assert wake_ups_of_other_threads(settings) < _CALLS / 4


@pytest.mark.slow
def test_jax_itself_wakes_another_thread_for_every_call() -> None:
    assert wake_ups_of_other_threads("") > _CALLS / 2
