"""Cores that do not fall asleep while a run waits: the kernel's own means against slow wake-ups."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from envpool_bridge.errors import UserError

_LATENCY_FILE = Path("/dev/cpu_dma_latency")  # "PM quality of service" of the Linux kernel
_NO_LATENCY = bytes(4)  # microseconds that a wake-up may take, as a 32-bit integer: at 0 an idle core polls


@contextlib.contextmanager
def disable_cpu_idle(latency_file: Path = _LATENCY_FILE) -> Iterator[None]:
    """Keeps all cores of this machine from sleeping until the context ends, or this process does, however it ends.

    For runs whose environments wait rather than compute: there every step pays for wake-ups of cores that went to sleep, and for
    what they forgot: on a virtual machine half a millisecond of 5.9 (16 rows, docs/how_to/custom_plan.md). It costs power, and
    where all cores compute anyway it gains nothing.

    Args:
        latency_file: what the kernel listens at.

    Raises:
        UserError: this machine has no such file, or this user may not write it.
    """
    try:
        descriptor = os.open(
            latency_file, os.O_WRONLY
        )  # not inherited: no worker keeps it open when this process is gone
    except OSError as error:
        raise UserError(f"cores cannot be kept awake: {_advice(latency_file, error)}") from error
    try:
        os.write(descriptor, _NO_LATENCY)
        yield
    finally:
        os.close(descriptor)


def _advice(latency_file: Path, error: OSError) -> str:
    if error.errno in {errno.EACCES, errno.EPERM}:
        return f"{latency_file} may not be written by this user: have root allow it (chmod o+w), or leave keep_cores_awake out"
    return f"{latency_file}: {error.strerror}: this takes a Linux kernel's own file; leave keep_cores_awake out"
