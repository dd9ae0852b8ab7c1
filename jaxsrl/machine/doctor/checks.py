"""Checks of the requirements of jaxsrl. Each requirement is tried, not only looked up."""

import dataclasses
import os
import platform
import resource
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from envpool_bridge.errors import UserError
from jaxsrl.machine.package_names import NAMES, describe_shared, find_conflict, find_shared_names, find_version

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "gymnasium", "chex", "orbax-checkpoint", "posix-ipc")
_SHARED_MEMORY, _CGROUP = Path("/dev/shm"), Path("/sys/fs/cgroup")
_LEAST_SHARED_BYTES, _LEAST_FILES = 64 * 2**20, 1024


@dataclasses.dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes:
        name: name of the check.
        is_well: whether it passed.
        finding: result as text.
        advice: how to fix a failure; "" if it passed.
    """

    name: str
    is_well: bool
    finding: str
    advice: str = ""


def run_checks() -> list[Check]:
    """Runs every check; a failing check does not stop the others."""
    return [_run_check(name, check) for name, check in CHECKS.items()]


def check_python(version: tuple[int, int] = sys.version_info[:2]) -> Check:
    """Checks the interpreter and the processor."""
    finding = f"Python {version[0]}.{version[1]} on {platform.system()} {platform.machine()}"
    if version < (3, 11):
        return Check("python", False, finding, "install Python 3.11 or newer")
    from envpool_bridge.shm.segment import validate_machine

    try:
        validate_machine()
    except UserError as error:
        return Check("python", False, finding, str(error))
    return Check("python", True, finding)


def check_packages() -> Check:
    """Checks installed packages and their versions."""
    versions = {name: find_version(name, missing="missing") for name in PACKAGES}
    finding = ", ".join(f"{name} {version}" for name, version in versions.items())
    missing = [name for name, version in versions.items() if version == "missing"]
    return Check("packages", not missing, finding, f"pip install {' '.join(missing)}" if missing else "")


def check_package_names() -> Check:
    """Checks that `agents` and `experiments`, names that other distributions use too, are jaxsrl's packages alone."""
    shared = find_shared_names()
    problems = [find_conflict(), *(describe_shared(name, owners) for name, owners in shared.items())]
    problem = next(filter(None, problems), "")
    finding = ", ".join(f"{name} of {' and '.join(shared.get(name, ['jaxsrl']))}" for name in NAMES)
    return Check("package names", not problem, finding, problem)


def check_devices() -> Check:
    """Reports jax's devices."""
    from jaxsrl.machine.resources import Resources

    resources = Resources.detect()
    finding = f"{resources.num_devices} {resources.platform} ({resources.name})"
    return Check("devices", True, finding)


def check_shared_memory(least_bytes: int = _LEAST_SHARED_BYTES) -> Check:
    """Checks that `least_bytes` of shared memory can be reserved."""
    from envpool_bridge.errors import SegmentTooLargeError
    from envpool_bridge.shm.segment import reserve

    statistics = os.statvfs(_SHARED_MEMORY)
    free, size = statistics.f_bavail * statistics.f_frsize, statistics.f_blocks * statistics.f_frsize
    finding = f"{free / 2**20:,.0f} of {size / 2**20:,.0f} MiB free in {_SHARED_MEMORY}"
    try:
        os.close(reserve(least_bytes, "this check"))
    except SegmentTooLargeError as error:
        return Check("shared memory", False, finding, str(error))
    return Check("shared memory", True, finding)


def check_memory() -> Check:
    """Reports the available memory and the limit of the control group."""
    from envpool_bridge.limits import free_host_bytes

    free = free_host_bytes()
    limit = _read(_CGROUP / "memory.max")
    finding = "not known" if free is None else f"{free / 2**30:,.1f} GiB available"
    finding += "" if limit in ("", "max") else f", the control group's limit is {int(limit) / 2**30:,.1f} GiB"
    return Check("memory", True, finding)


def check_cores() -> Check:
    """Checks that the control group allows all visible cores to be busy."""
    from envpool_bridge.limits import count_cores, count_visible_cores

    visible, allowed = count_visible_cores(), count_cores()
    if allowed == visible:
        return Check("cores", True, f"{visible}")
    finding = f"{visible}, of which a CPU quota allows {allowed} to be busy at once"
    return Check("cores", False, finding, f"use --pool.num-workers {allowed} or less, or raise the quota")


def check_open_files(least: int = _LEAST_FILES) -> Check:
    """Checks the limit of open files; every worker needs a few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    finding = f"{soft:,} may be open (at most {hard:,})"
    return Check("open files", soft >= least, finding, "" if soft >= least else f"ulimit -n {least}")


def check_workers() -> Check:
    """Checks that an environment process starts, steps and stops."""
    import gymnasium
    import numpy as np

    from envpool_bridge.vector_env import PoolVectorEnv

    envs = PoolVectorEnv(partial(gymnasium.make, "CartPole-v1"), num_envs=2, num_workers=1)
    try:
        envs.reset(seed=0)
        envs.step(np.zeros(2, np.int64))
    finally:
        envs.close()
    return Check("environment processes", True, "one started, stepped and stopped")


CHECKS: dict[str, Callable[[], Check]] = {
    "python": check_python,
    "packages": check_packages,
    "package names": check_package_names,
    "devices": check_devices,
    "shared memory": check_shared_memory,
    "memory": check_memory,
    "cores": check_cores,
    "open files": check_open_files,
    "environment processes": check_workers,
}


def _run_check(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:  # noqa: BLE001  any error is the result of the check
        return Check(name, False, f"{type(error).__name__}: {error}", "see the message")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
