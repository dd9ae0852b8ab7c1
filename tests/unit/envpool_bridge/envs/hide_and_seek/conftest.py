"""One compilation of the planar kernel for all processes of a session: numba's cache does not wait for another's."""

import fcntl
import importlib.util
from pathlib import Path

import pytest

from envpool_bridge.envs.hide_and_seek.game import Base
from envpool_bridge.envs.suites.hide_and_seek import make_planar


@pytest.fixture(scope="session", autouse=True)
def compiled_kernel(pytestconfig):
    """Compiles the kernel, or waits for the process that does and loads it."""
    if importlib.util.find_spec("numba") is None:
        return
    lock = Path(pytestconfig.rootpath) / ".pytest_cache" / "planar_kernel.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        make_planar(Base()).reset(seed=0)
