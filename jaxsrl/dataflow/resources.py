"""What the machine has."""

import dataclasses
import os


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a distribution policy may use.

    Attributes:
        num_cores: processor cores this process may run on.
        platform: of the devices: "cpu", "gpu" or "tpu".
        num_devices: devices that jax sees in this process.
    """

    num_cores: int
    platform: str
    num_devices: int

    @staticmethod
    def detect() -> "Resources":
        """What this process sees; initialises jax's devices."""
        import jax

        platform, count = jax.default_backend(), jax.local_device_count()  # pyright: ignore[reportUnknownMemberType]
        return Resources(len(os.sched_getaffinity(0)), platform, count)
