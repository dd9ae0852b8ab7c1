"""Devices of the host: the one next to an accelerator, and the CPU split into several for plans that need more."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

from envpool_bridge.errors import UserError
from envpool_bridge.limits import count_cores
from jaxsrl.machine.cpu_dispatch import use_synchronous_cpu_dispatch
from jaxsrl.machine.default_environment import default_environment

_THREADS_PER_DEVICE = 8  # enough in all runs so far; fewer are untested
_THREADS = "NPROC"  # sets the number of XLA's threads


def host_device() -> Any:
    """Returns a device of the host, or jax's default device if JAX_PLATFORMS names only the accelerator."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return jax.local_devices()[0]


def set_num_cpu_devices(num_devices: int, communicate: bool = True) -> None:
    """Makes jax use `num_devices` devices of the platform "cpu"; initializes jax's devices, which fixes their number.

    Args:
        num_devices: number of devices.
        communicate: whether programs have collective operations over these devices, which need more threads.

    Raises:
        UserError: jax already has another number of them, or none at all.
    """
    use_synchronous_cpu_dispatch()
    try:
        jax.config.update("jax_num_cpu_devices", num_devices)
    except RuntimeError:
        pass  # jax's devices are already fixed; possibly at the requested number
    try:
        with _threads_for(num_devices, _THREADS_PER_DEVICE if communicate else 1):
            num_found = len(jax.local_devices(backend="cpu"))
    except RuntimeError as error:
        raise UserError(
            f"--machine.num-cpu-devices {num_devices}: jax has no devices of the host: add cpu to JAX_PLATFORMS"
        ) from error
    if num_found != num_devices:
        raise UserError(
            f"--machine.num-cpu-devices {num_devices} is set too late: jax already runs with {num_found} host devices; split the "
            f"host before anything uses jax"
        )


@contextlib.contextmanager
def _threads_for(num_devices: int, per_device: int) -> Iterator[None]:
    """Makes XLA start more threads, so that collective operations of the host's devices do not deadlock.

    An all-reduce of a device holds one of XLA's threads until the other devices arrive. With one thread per core, XLA's default,
    operations whose counterparts get no thread may hold all threads forever. XLA then aborts the process: in three of six
    runs of 366 updates under `central`, with two devices on two busy cores. Waiting threads use no core.
    """
    # Other readers of the variable must not see it.
    with default_environment({_THREADS: str(count_cores() + per_device * num_devices)}):
        yield
