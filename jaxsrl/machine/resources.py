"""Resources of the machine: cores, devices, memory."""

import dataclasses
import os
import platform
from pathlib import Path
from typing import Any, NamedTuple

_SHARED_MEMORY = "/dev/shm"
_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


class _GroupFiles(NamedTuple):
    """File names in one version of control groups."""

    controller: str
    limit: str
    used: str
    reclaimable: str


_GROUP_FILES = (
    _GroupFiles("", "memory.max", "memory.current", "inactive_file"),
    _GroupFiles("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


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
        num_cores: processor cores this process may use.
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


def count_cores() -> int:
    """Returns the number of CPU cores that this process may use; all of them where the system has no affinity (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_model() -> str:
    """Returns the model of the processor, or its architecture where the system does not name the model."""
    try:
        lines = (_PROC / "cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def free_host_bytes() -> int | None:
    """Returns the bytes of memory that this process may still use, including shared memory; None if unknown.

    It is the minimum of the kernel's available memory and the rest of each control group above this process.
    """
    try:
        lines = (_PROC / "meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    left = [_left_in_group(directory, files) for files in _GROUP_FILES for directory in _groups(files)]
    return max(0, min([available, *(number for number in left if number is not None)]))


def _free_shared_bytes(host_bytes: int | None) -> int | None:
    """Returns the free shared memory; None on a system without /dev/shm. Its pages count as memory of the machine and the group."""
    try:
        statistics = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return None
    free = statistics.f_bavail * statistics.f_frsize
    return free if host_bytes is None else min(free, host_bytes)


def _groups(files: _GroupFiles) -> list[Path]:
    """Returns directories of this process's control group and its ancestors; a container shows only its own, as the root."""
    try:
        lines = (_PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        lines = []
    entries = [line.split(":", 2)[1:] for line in lines if line.count(":") >= 2]
    paths = [path.strip("/") for controllers, path in entries if files.controller in controllers.split(",")]
    root = _CGROUP / files.controller
    inner = [root / path for path in paths if path and ".." not in path]
    return [root, *(group for one in inner for group in (one, *one.parents) if root in group.parents)]


def _left_in_group(directory: Path, files: _GroupFiles) -> int | None:
    """Returns bytes below the group's limit. Inactive file pages count as free, because the kernel drops them."""
    try:
        limit, used = int((directory / files.limit).read_text()), int((directory / files.used).read_text())
    except (OSError, ValueError):  # no such group, or no limit: "max"
        return None
    try:
        counts = dict(line.split(" ", 1) for line in (directory / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        counts = {}
    return limit - used + int(counts.get(files.reclaimable, 0))


def _free_bytes(device: Any) -> int | None:
    """Returns the free memory of a device; None if it uses host memory."""
    statistics = device.memory_stats()
    if not statistics or "bytes_limit" not in statistics:
        return None
    return int(statistics["bytes_limit"]) - int(statistics.get("bytes_in_use", 0))
