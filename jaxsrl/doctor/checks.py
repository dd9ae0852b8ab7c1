"""What jaxsrl needs of a machine, each tried and not only looked up."""

import dataclasses
import importlib.metadata
import os
import platform
import resource
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "gymnasium", "chex", "orbax-checkpoint", "posix-ipc")
_SHARED_MEMORY, _CGROUP = Path("/dev/shm"), Path("/sys/fs/cgroup")
_LEAST_SHARED_BYTES, _LEAST_FILES = 64 * 2**20, 1024


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing looked at.

    Attributes:
        name: of it.
        is_well: whether it does.
        found: in words.
        advice: what to do; "" if all is well.
    """

    name: str
    is_well: bool
    found: str
    advice: str = ""


def run_checks() -> list[Check]:
    """Every check; one that fails does not keep the others from being made."""
    return [_guarded(name, check) for name, check in CHECKS.items()]


def check_python(version: tuple[int, int] = sys.version_info[:2]) -> Check:
    """The interpreter and the processor."""
    machine = platform.machine()
    found = f"Python {version[0]}.{version[1]} on {platform.system()} {machine}"
    if version < (3, 11):
        return Check("python", False, found, "install Python 3.11 or newer")
    if machine not in {"x86_64", "AMD64"}:
        return Check("python", False, found, "environment processes need x86-64; elsewhere use --policy serial")
    return Check("python", True, found)


def check_packages() -> Check:
    """What is installed, and how new."""
    versions: dict[str, str] = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "missing"
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    missing = [name for name, version in versions.items() if version == "missing"]
    return Check("packages", not missing, found, f"pip install {' '.join(missing)}" if missing else "")


def check_devices() -> Check:
    """What jax computes on."""
    from jaxsrl.machine.resources import Resources

    resources = Resources.detect()
    found = f"{resources.num_devices} {resources.platform} ({resources.name})"
    return Check("devices", True, found)


def check_shared_memory(least_bytes: int = _LEAST_SHARED_BYTES) -> Check:
    """Whether trajectories have somewhere to go: reserves `least_bytes` and gives them back."""
    from envpool_bridge.errors import SegmentTooLargeError
    from envpool_bridge.shm.segment import reserve

    statistics = os.statvfs(_SHARED_MEMORY)
    free, size = statistics.f_bavail * statistics.f_frsize, statistics.f_blocks * statistics.f_frsize
    found = f"{free / 2**20:,.0f} of {size / 2**20:,.0f} MiB free in {_SHARED_MEMORY}"
    try:
        os.close(reserve(least_bytes, "this check"))
    except SegmentTooLargeError as error:
        return Check("shared memory", False, found, str(error))
    return Check("shared memory", True, found)


def check_memory() -> Check:
    """What processes here may still take, and the limit of a control group."""
    from jaxsrl.machine.resources import free_host_bytes

    free = free_host_bytes()
    limit = _read(_CGROUP / "memory.max")
    found = "not known" if free is None else f"{free / 2**30:,.1f} GiB available"
    found += "" if limit in ("", "max") else f", the control group's limit is {int(limit) / 2**30:,.1f} GiB"
    return Check("memory", True, found)


def check_cores() -> Check:
    """Whether the kernel lets this process use the cores that it shows."""
    cores, quota = len(os.sched_getaffinity(0)), _read(_CGROUP / "cpu.max").split()
    if len(quota) != 2 or quota[0] == "max":
        return Check("cores", True, f"{cores}")
    allowed = int(quota[0]) / int(quota[1])
    found = f"{cores}, of which the control group allows {allowed:.1f} to be busy at once"
    if allowed >= cores:
        return Check("cores", True, found)
    return Check("cores", False, found, f"use --run.num-env-workers {max(1, int(allowed))} or less, or raise the quota")


def check_open_files(least: int = _LEAST_FILES) -> Check:
    """Every worker takes a few descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft:,} may be open (at most {hard:,})"
    return Check("open files", soft >= least, found, "" if soft >= least else f"ulimit -n {least}")


def check_workers() -> Check:
    """Whether an environment process starts, steps and ends."""
    import gymnasium
    import numpy as np

    from envpool_bridge.vector_env import PoolVectorEnv

    envs = PoolVectorEnv(partial(gymnasium.make, "CartPole-v1"), num_envs=2, num_workers=1)
    try:
        envs.reset(seed=0)
        envs.step(np.zeros(2, np.int64))
    finally:
        envs.close()
    return Check("environment processes", True, "one was started, stepped and stopped")


CHECKS: dict[str, Callable[[], Check]] = {
    "python": check_python,
    "packages": check_packages,
    "devices": check_devices,
    "shared memory": check_shared_memory,
    "memory": check_memory,
    "cores": check_cores,
    "open files": check_open_files,
    "environment processes": check_workers,
}


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:  # noqa: BLE001  whatever goes wrong is what the check has found
        return Check(name, False, f"{type(error).__name__}: {error}", "see the message")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
