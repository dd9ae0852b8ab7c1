"""What the kernel is told so that its cores do not sleep; on machines that allow it, what the kernel says to that."""

import contextlib
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.machine.cpu_latency import disable_cpu_idle

LATENCY_FILE = Path("/dev/cpu_dma_latency")
HOLDER = """
from jaxsrl.machine.cpu_latency import disable_cpu_idle
with disable_cpu_idle():
    print("awake", flush=True)
    input()
"""


def allowed_microseconds() -> int:
    """That a wake-up may take, as everybody together has asked of the kernel."""
    with LATENCY_FILE.open("rb", buffering=0) as file:
        return struct.unpack("i", file.read(4))[0]


def may_write() -> bool:
    return os.access(LATENCY_FILE, os.W_OK)


def test_the_kernel_is_asked_for_wake_ups_that_take_no_time(tmp_path: Path) -> None:
    file = tmp_path / "latency"
    file.write_bytes(b"")
    with disable_cpu_idle(file):
        assert struct.unpack("i", file.read_bytes()) == (0,)


def descriptors_of(file: Path) -> list[int]:
    """Of this process, that are open on the file."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one of this very list
            if os.readlink(f"/proc/self/fd/{name}") == str(file):
                found.append(int(name))
    return found


def test_disable_cpu_idle_holds_the_file_uninherited(tmp_path: Path) -> None:
    file = tmp_path / "latency"
    file.write_bytes(b"")
    with contextlib.suppress(ZeroDivisionError), disable_cpu_idle(file):
        (descriptor,) = descriptors_of(file)
        assert not os.get_inheritable(descriptor)
        raise ZeroDivisionError
    assert descriptors_of(file) == []


def test_a_machine_without_such_a_file_is_told_what_to_leave_out(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match="latency: No such file or directory: .*; remove machine.disable_cpu_idle"),
        disable_cpu_idle(tmp_path / "latency"),
    ):
        pass


def test_a_user_without_the_right_is_told_who_can_give_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, flags: int) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refused)  # root may write any file
    with (
        pytest.raises(UserError, match=r"may not be written by this user: have root allow it \(chmod o\+w\)"),
        disable_cpu_idle(tmp_path / "latency"),
    ):
        pass


@pytest.mark.skipif(not may_write(), reason="cores of this machine may not be kept awake by this user")
def test_disable_cpu_idle_ends_with_a_killed_process() -> None:
    before = allowed_microseconds()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "awake\n"
        assert allowed_microseconds() == 0
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(60.0)
    assert allowed_microseconds() == before
