"""Why a process ended, in words."""

import os
import subprocess
import sys

import pytest

from envpool_bridge.supervisor.exit_status import CgroupMemory, ExitContext, describe_exit, resident_bytes

MIB = 2**20


@pytest.mark.parametrize(
    ("status", "circumstances", "says"),
    [
        (-11, ExitContext(in_step=True), "SIGSEGV, in the middle of a step: a crash in native code"),
        (-7, ExitContext(in_step=False), "SIGBUS, between two steps: a memory page could not be provided"),
        (-6, None, "SIGABRT: native code of the environment aborted"),
        (-10, None, "SIGUSR1"),
        (-63, None, "signal 63"),
        (
            3,
            ExitContext(in_step=True),
            "exit status 3, in the middle of a step: something in the environment called exit",
        ),
        (0, None, "exit status 0: something in the environment called exit, although no stop was requested"),
        (-9, None, "SIGKILL: killed from outside, often by the kernel for lack of memory"),
        (
            -9,
            ExitContext(True, 1900 * MIB, 1, 2048 * MIB),
            "SIGKILL, in the middle of a step: killed by the kernel for lack of memory "
            "(resident memory when last seen: 1900 MiB of 2048 MiB): give the run more memory",
        ),
        (-9, ExitContext(oom_kills=0), "SIGKILL: killed from outside, and not by this control group's memory limit"),
    ],
)
def test_describe_exit_names_signal_cause_and_memory(status, circumstances, says):
    assert describe_exit(status, circumstances).startswith(says)


def test_resident_bytes_measures_a_process():
    grows = "import sys; block = b'x' * (64 * 2**20); print('ready', flush=True); sys.stdin.readline()"
    with subprocess.Popen(
        [sys.executable, "-c", grows], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        held = resident_bytes(process.pid)
        process.communicate("\n")
    assert held is not None
    assert 64 * MIB < held < 128 * MIB
    assert resident_bytes(process.pid) is None


def test_cgroup_memory_reads_kernel_files(tmp_path):
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 2\noom_kill 3\n")
    (tmp_path / "memory.max").write_text(f"{256 * MIB}\n")
    group = CgroupMemory(tmp_path)
    assert (group.oom_kills(), group.limit_bytes()) == (3, 256 * MIB)
    (tmp_path / "memory.max").write_text("max\n")
    assert group.limit_bytes() is None
    assert CgroupMemory(tmp_path / "missing").oom_kills() is None


def test_this_process_can_be_asked_about_its_own_group():
    kills = CgroupMemory().oom_kills()
    assert kills is None or kills >= 0
    assert resident_bytes(os.getpid())
