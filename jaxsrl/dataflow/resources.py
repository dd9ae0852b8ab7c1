"""What the machine has."""

import dataclasses
import os
from typing import Any

_SHARED_MEMORY = "/dev/shm"


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a distribution policy may use.

    Attributes:
        num_cores: processor cores this process may run on.
        platform: of the devices: "cpu", "gpu" or "tpu".
        num_devices: devices that jax sees in this process.
        num_host_devices: devices of the platform "cpu"; 0 if jax was told not to make any.
        shared_memory_bytes: free for trajectory slots; None if not known.
        name: of the device, for people.
    """

    num_cores: int
    platform: str
    num_devices: int
    num_host_devices: int = 1
    shared_memory_bytes: int | None = None
    name: str = ""

    @staticmethod
    def detect() -> "Resources":
        """What this process sees; initialises jax's devices."""
        import jax

        def local(backend: str | None) -> list[Any]:
            found: list[Any] = jax.local_devices(backend=backend)  # pyright: ignore
            return found

        devices = local(None)
        platform = str(devices[0].platform)
        try:
            num_host = len(local("cpu"))
        except RuntimeError:  # JAX_PLATFORMS names the accelerator alone
            num_host = 0
        statistics = os.statvfs(_SHARED_MEMORY)
        free = statistics.f_bavail * statistics.f_frsize
        name = str(devices[0].device_kind)
        return Resources(len(os.sched_getaffinity(0)), platform, len(devices), num_host, free, name)

    def devices_of(self, platform: str) -> int:
        """Devices of a placement's platform."""
        return self.num_host_devices if platform == "cpu" and self.platform != "cpu" else self.num_devices
