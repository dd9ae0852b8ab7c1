"""The device that an inference server on another node acts with."""

import os
import socket

import jax

from envpool_bridge.errors import UserError
from jaxsrl.machine.devices import Device
from jaxsrl.plan.fragment import Devices, Placement


def acting_device(placement: Placement, server: int) -> Device:
    """Returns the first device here, which is a GPU where the plan has servers act with one.

    Args:
        placement: of the plan's inference.
        server: its number, for the message.

    Raises:
        UserError: the cluster has given the server a GPU, but jax sees none. It would act on the processor, many times slower than
            asked for, while the GPU is kept from others.
    """
    if not isinstance(placement, Devices) or placement.platform != "gpu":
        return jax.local_devices()[0]
    try:
        return jax.local_devices(backend="gpu")[0]
    except RuntimeError as error:
        given = ", ".join(f"{name}={os.environ.get(name, '')!r}" for name in ("CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS"))
        said = (str(error).strip().splitlines() or ["nothing"])[0]
        raise UserError(
            f"inference server {server} was given a GPU of its node (host {socket.gethostname()}; {given}), but jax sees none "
            f'there ({said}): install jax for it (pip install "jaxsrl[cuda]"), start Ray there without JAX_PLATFORMS and with no '
            f"more --num-gpus than there are, or have servers act on processors: --inference.platform cpu"
        ) from error
