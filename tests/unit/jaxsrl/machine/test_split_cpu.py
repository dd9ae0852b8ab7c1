"""In processes of their own: jax starts its threads once, when it begins to use its devices."""

import os
import subprocess
import sys

import pytest

_SCRIPT = """
import os
from jaxsrl.machine.split_cpu import set_num_cpu_devices
set_num_cpu_devices(2)
import jax
names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
print(len(jax.devices()), sum("Eigen" in name for name in names), os.environ.get("NPROC"))
"""


def split(**environment: str) -> list[str]:
    """[devices, threads that compute, NPROC afterwards]."""
    kept = {name: value for name, value in os.environ.items() if name not in {"XLA_FLAGS", "NPROC"}}
    command = [sys.executable, "-c", _SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=150, env=kept | environment)
    return done.stdout.split()


@pytest.mark.slow
def test_every_device_has_threads_to_wait_with() -> None:
    devices, threads, left = split()
    assert devices == "2"
    assert int(threads) >= 2 * 8
    assert left == "None"  # processes that are started later are not meant


@pytest.mark.parametrize("threads", ["3", pytest.param("7", marks=pytest.mark.slow)])
def test_a_number_of_threads_that_the_user_has_chosen_stands(threads: str) -> None:
    assert split(NPROC=threads) == ["2", threads, threads]
