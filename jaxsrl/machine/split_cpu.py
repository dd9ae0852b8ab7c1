"""Devices of the host: the one beside an accelerator, and the processor split into several for plans that want more."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import jax

from envpool_bridge.errors import UserError
from jaxsrl.machine.cpu_dispatch import use_synchronous_cpu_dispatch

_THREADS_A_DEVICE = 8  # enough in all runs tried since; fewer were not tried
_THREADS = "NPROC"  # from which XLA takes the number of its threads, if it is set


def host_device() -> Any:
    """Returns a device of the host, or jax's default device where JAX_PLATFORMS names the accelerator alone."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return jax.local_devices()[0]


def set_num_cpu_devices(num_devices: int) -> None:
    """Makes jax see so many devices of the platform "cpu"; initialises jax's devices, which fixes their number.

    Raises:
        UserError: jax already has another number of them, or none at all.
    """
    use_synchronous_cpu_dispatch()
    try:
        jax.config.update("jax_num_cpu_devices", num_devices)
    except RuntimeError:
        pass  # jax's devices are fixed already; perhaps at the number that is wanted
    try:
        with _threads_for(num_devices):
            found = len(jax.local_devices(backend="cpu"))
    except RuntimeError as error:
        raise UserError(
            f"--run.host-devices {num_devices}: jax has no devices of the host: add cpu to JAX_PLATFORMS"
        ) from error
    if found != num_devices:
        raise UserError(
            f"--run.host-devices {num_devices} comes too late: jax already runs with {found} host devices; split the host "
            f"before anything uses jax"
        )


@contextlib.contextmanager
def _threads_for(num_devices: int) -> Iterator[None]:
    """Has XLA start more threads, so that collective operations of the host's devices meet.

    A device's all-reduce keeps one of XLA's threads until those of the other devices have come. With a thread a core, as XLA has
    them, all may be kept by operations whose counterparts find none, for ever: XLA then ends the process (with two devices on two
    busy cores in three of six runs of 366 updates under `central`). Threads that wait take no core.
    """
    before = os.environ.get(_THREADS)
    threads = len(os.sched_getaffinity(0)) + _THREADS_A_DEVICE * num_devices
    if before is None:
        os.environ[_THREADS] = str(threads)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_THREADS]  # nobody else is meant
