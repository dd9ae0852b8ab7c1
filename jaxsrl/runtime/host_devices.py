"""Splitting the processor into several jax devices, for plans that want more devices than there are."""

import jax

from envpool_bridge.errors import UserError
from jaxsrl.inline_dispatch import dispatch_inline


def split_host(num_devices: int) -> None:
    """Makes jax see so many devices of the platform "cpu"; initialises jax's devices, which fixes their number.

    Raises:
        UserError: jax already has another number of them, or none at all.
    """
    dispatch_inline()
    try:
        jax.config.update("jax_num_cpu_devices", num_devices)
    except RuntimeError:
        pass  # jax's devices are fixed already; perhaps at the number that is wanted
    try:
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
