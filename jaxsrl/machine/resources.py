"""Resources of the machine: cores, devices, memory."""

import dataclasses
import os
import platform
from pathlib import Path
from typing import Any

from envpool_bridge.limits import count_cores, free_host_bytes

_SHARED_MEMORY = "/dev/shm"
_PROC = Path("/proc")


@dataclasses.dataclass(frozen=True)
class Node:
    """Machine of a cluster, or a stand-in for one.

    Attributes:
        name: unique name in the cluster.
        num_cores: cores that the cluster schedules.
        num_gpus: GPUs that the cluster schedules.
        memory_bytes: memory that the cluster schedules; None if unknown.
        object_store_bytes: shared memory for data between nodes; None if unknown.
    """

    name: str
    num_cores: int
    num_gpus: int = 0
    memory_bytes: int | None = None
    object_store_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class Resources:
    """Resources available to a plan.

    Attributes:
        num_cores: cores this process may keep busy.
        platform: platform of the devices: "cpu", "gpu" or "tpu".
        num_devices: devices that jax sees in this process.
        num_host_devices: devices of the platform "cpu"; 0 if jax is configured without them.
        shared_memory_bytes: free space for trajectory slots, in /dev/shm and in memory; None if unknown.
        name: name of the device.
        host_memory_bytes: memory this process may still use; None if unknown.
        device_memory_bytes: free memory of each device; None if unknown, or where devices use host memory.
        nodes: nodes of the cluster for environment hosts; () without a cluster.
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
        """Returns the resources that this process sees; initializes jax's devices."""
        import jax

        from jaxsrl.machine.cpu_dispatch import use_synchronous_cpu_dispatch

        use_synchronous_cpu_dispatch()
        devices: list[Any] = jax.local_devices()
        platform = str(devices[0].platform)
        try:
            num_host = len(jax.local_devices(backend="cpu"))
        except RuntimeError:  # JAX_PLATFORMS names the accelerator alone
            num_host = 0
        host = free_host_bytes()
        free = _free_shared_bytes(host)
        name, cores = str(devices[0].device_kind), count_cores()
        free_on_devices = [number for number in map(_free_bytes, devices) if number is not None]
        device_bytes = min(free_on_devices, default=None)
        return Resources(cores, platform, len(devices), num_host, free, name, host, device_bytes)

    def devices_of(self, platform: str) -> int:
        """Returns the number of devices of a placement's platform."""
        return self.num_host_devices if platform == "cpu" and self.platform != "cpu" else self.num_devices


def cpu_model() -> str:
    """Returns the model of the processor, or its architecture where the system does not name the model."""
    try:
        lines = (_PROC / "cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _free_shared_bytes(host_bytes: int | None) -> int | None:
    """Returns the free shared memory; None on a system without /dev/shm. Its pages count as memory of the machine and the group."""
    try:
        statistics = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return None
    free = statistics.f_bavail * statistics.f_frsize
    return free if host_bytes is None else min(free, host_bytes)


def _free_bytes(device: Any) -> int | None:
    """Returns the free memory of a device; None if it uses host memory."""
    statistics = device.memory_stats()
    if not statistics or "bytes_limit" not in statistics:
        return None
    return int(statistics["bytes_limit"]) - int(statistics.get("bytes_in_use", 0))
