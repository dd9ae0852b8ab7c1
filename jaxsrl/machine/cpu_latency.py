"""CPU idle states, disabled during a run by the kernel's `/dev/cpu_dma_latency`."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from envpool_bridge.errors import UserError

_LATENCY_FILE = Path("/dev/cpu_dma_latency")  # "PM quality of service" of the Linux kernel
_NO_LATENCY = bytes(4)  # maximum wake-up latency in microseconds, a 32-bit integer: at 0 an idle core polls


@contextlib.contextmanager
def disable_cpu_idle(latency_file: Path = _LATENCY_FILE) -> Iterator[None]:
    """Disables CPU idle states on all cores of this machine until the context or this process ends.

    It helps runs whose environments wait rather than compute. There, every step pays for waking a sleeping core and for its cold
    caches: half a millisecond of 5.9 on a virtual machine with 16 rows. It costs power, and gains nothing if all cores compute.

    Raises:
        UserError: this machine has no such file, or this user may not write it.
    """
    try:
        # It is not inherited: otherwise a worker could keep it open after this process.
        descriptor = os.open(latency_file, os.O_WRONLY)
    except OSError as error:
        raise UserError(f"cannot disable CPU idle states: {_advice(latency_file, error)}") from error
    try:
        os.write(descriptor, _NO_LATENCY)
        yield
    finally:
        os.close(descriptor)


def _advice(latency_file: Path, error: OSError) -> str:
    if error.errno in {errno.EACCES, errno.EPERM}:
        return f"{latency_file} may not be written by this user: have root allow it (chmod o+w), or remove machine.disable_cpu_idle"
    return f"{latency_file}: {error.strerror}: a file of the Linux kernel is needed; remove machine.disable_cpu_idle"
