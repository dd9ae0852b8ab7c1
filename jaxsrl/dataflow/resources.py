"""What the machine has."""

import dataclasses
import os
from pathlib import Path
from typing import Any

_SHARED_MEMORY = "/dev/shm"
_CGROUP = Path("/sys/fs/cgroup")


@dataclasses.dataclass(frozen=True)
class Node:
    """A machine of a cluster, or what stands for one.

    Attributes:
        name: unique in the cluster.
        num_cores: that the cluster gives out.
        num_gpus: likewise.
        memory_bytes: likewise; None if not known.
        object_store_bytes: shared memory for what travels between nodes; None if not known.
    """

    name: str
    num_cores: int
    num_gpus: int = 0
    memory_bytes: int | None = None
    object_store_bytes: int | None = None


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
        host_memory_bytes: that this process may still take; None if not known.
        device_memory_bytes: free on each device; None if not known, or where devices use the host's.
        nodes: of the cluster that environment hosts may be on; () without one.
    """

    num_cores: int
    platform: str
    num_devices: int
    num_host_devices: int = 1
    shared_memory_bytes: int | None = None
    name: str = ""
    host_memory_bytes: int | None = None
    device_memory_bytes: int | None = None
    nodes: tuple[Node, ...] = ()

    @staticmethod
    def detect() -> "Resources":
        """What this process sees; initialises jax's devices."""
        import jax

        from jaxsrl.inline_dispatch import dispatch_inline

        dispatch_inline()

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
        name, cores = str(devices[0].device_kind), len(os.sched_getaffinity(0))
        of_devices = [number for number in map(_free_bytes, devices) if number is not None]
        of_device = min(of_devices, default=None)
        return Resources(cores, platform, len(devices), num_host, free, name, free_host_bytes(), of_device)

    def devices_of(self, platform: str) -> int:
        """Devices of a placement's platform."""
        return self.num_host_devices if platform == "cpu" and self.platform != "cpu" else self.num_devices


def free_host_bytes() -> int | None:
    """Memory that processes here may still take: what the kernel calls available, or what a control group leaves of it."""
    try:
        with open("/proc/meminfo") as file:
            available = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    try:
        with open(_CGROUP / "memory.max") as limit, open(_CGROUP / "memory.current") as used:
            return min(available, max(0, int(limit.read()) - int(used.read())))
    except (OSError, ValueError):  # no limit: "max", or another kind of control group
        return available


def _free_bytes(device: Any) -> int | None:
    """Free memory of a device; None where it uses the host's."""
    statistics = device.memory_stats()
    if not statistics or "bytes_limit" not in statistics:
        return None
    return int(statistics["bytes_limit"]) - int(statistics.get("bytes_in_use", 0))
