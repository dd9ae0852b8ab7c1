"""Memory and cores that are free: of the machine, and what the control groups around the process leave."""

import os

import jax
import numpy as np
import pytest

from envpool_bridge import limits
from envpool_bridge.errors import UserError
from envpool_bridge.limits import count_cores, free_host_bytes
from jaxsrl.machine.resources import Resources
from jaxsrl.replay.host.storage import allocate_arrays

MIB = 2**20
MACHINE = 1000 * MIB


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with 1000 MiB available; returns a function that writes a file of it."""

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    write("proc/meminfo", f"MemTotal: 1 kB\nMemAvailable:    {MACHINE // 1024} kB\n")
    monkeypatch.setattr(limits, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(limits, "_CGROUP", tmp_path / "group")
    return write


def group_2(machine, directory, limit, used, cache=0):
    machine(f"group/{directory}/memory.max", f"{limit}\n")
    machine(f"group/{directory}/memory.current", f"{used}\n")
    machine(f"group/{directory}/memory.stat", f"anon 17\nfile {cache + 5}\ninactive_file {cache}\nactive_file 5\n")


def test_without_a_control_group_the_kernel_decides(machine):
    assert free_host_bytes() == MACHINE
    group_2(machine, "", "max", 3 * MIB)
    assert free_host_bytes() == MACHINE


def test_file_pages_that_nothing_uses_count_as_free(machine):
    group_2(machine, "", 500 * MIB, 490 * MIB, cache=400 * MIB)
    assert free_host_bytes() == 410 * MIB
    group_2(machine, "", 500 * MIB, 520 * MIB)
    assert free_host_bytes() == 0


def test_version_1_counts_the_same(machine):
    machine("proc/self/cgroup", "4:cpu,memory:/a/b\n2:cpu:/\n")
    for directory, limit, cache in (("memory", 2**63 - 4096, 0), ("memory/a", 300 * MIB, 60 * MIB)):
        machine(f"group/{directory}/memory.limit_in_bytes", f"{limit}\n")
        machine(f"group/{directory}/memory.usage_in_bytes", f"{200 * MIB}\n")
        machine(f"group/{directory}/memory.stat", f"inactive_file 1\ntotal_inactive_file {cache}\n")
    assert free_host_bytes() == 160 * MIB


def test_the_narrowest_group_around_the_process_counts(machine):
    machine("proc/self/cgroup", "0::/slurm/job_7/step_0\n")
    group_2(machine, "slurm", 900 * MIB, 100 * MIB)
    group_2(machine, "slurm/job_7", 200 * MIB, 100 * MIB, cache=50 * MIB)
    group_2(machine, "slurm/job_7/step_0", "max", 100 * MIB)
    group_2(machine, "slurm/job_8", 1, 1)  # another's
    assert free_host_bytes() == 150 * MIB


def test_a_quota_of_cpu_time_counts_in_whole_cores(machine, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {*range(8)})
    assert count_cores() == 8
    machine("proc/self/cgroup", "4:cpu,cpuacct:/a\n0::/pod\n")
    machine("group/cpu.max", "max 100000\n")
    machine("group/cpu/cpu.cfs_quota_us", "-1\n")
    machine("group/cpu/cpu.cfs_period_us", "100000\n")
    assert count_cores() == 8
    machine("group/cpu/a/cpu.cfs_quota_us", "350000\n")
    machine("group/cpu/a/cpu.cfs_period_us", "100000\n")
    assert count_cores() == 3
    machine("group/pod/cpu.max", "60000 100000\n")
    assert count_cores() == 1


def test_free_host_bytes_counts_page_cache_as_free(machine):
    group_2(machine, "", 100 * MIB, 99 * MIB, cache=90 * MIB)
    (array,) = allocate_arrays([jax.ShapeDtypeStruct((2 * MIB,), np.uint8)])
    assert array.sum() == 0
    group_2(machine, "", 100 * MIB, 99 * MIB, cache=0)
    with pytest.raises(UserError, match=r"needs 2\.0 MiB .* 1\.0 MiB are available"):
        allocate_arrays([jax.ShapeDtypeStruct((2 * MIB,), np.uint8)])


def test_shared_memory_is_memory_of_the_group(machine):
    disk = os.statvfs("/dev/shm")
    group_2(machine, "", 100 * MIB, 99 * MIB)
    assert Resources.detect().shared_memory_bytes == min(MIB, disk.f_bavail * disk.f_frsize)
