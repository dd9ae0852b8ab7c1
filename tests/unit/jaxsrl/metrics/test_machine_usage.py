"""Values of records about the machine: rates, GPUs through a fake of nvidia-ml-py, devices of jax."""

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from jaxsrl.cluster.handle import usage_by_node
from jaxsrl.metrics.cluster_traffic import traffic_values
from jaxsrl.metrics.machine_usage import MachineUsage


class NVMLError(Exception):
    """As the package has it."""


def fake_nvml(num_gpus=2, fails=()):
    """A module with the functions of nvidia-ml-py that are used; those in `fails` raise."""
    module: Any = ModuleType("pynvml")

    def answer(name, result):
        def function(*arguments):
            if name in fails:
                raise NVMLError(name)
            return result(*arguments)

        setattr(module, name, function)

    module.NVMLError = NVMLError
    answer("nvmlInit", lambda: None)
    answer("nvmlDeviceGetCount", lambda: num_gpus)
    answer("nvmlDeviceGetHandleByIndex", lambda index: index)
    answer("nvmlDeviceGetMemoryInfo", lambda gpu: SimpleNamespace(used=1000 * (gpu + 1), total=8000, free=0))
    answer("nvmlDeviceGetUtilizationRates", lambda gpu: SimpleNamespace(gpu=25 * (gpu + 1), memory=0))
    mine = SimpleNamespace(pid=os.getpid(), usedGpuMemory=600)
    others = (SimpleNamespace(pid=1, usedGpuMemory=300), SimpleNamespace(pid=os.getpid(), usedGpuMemory=None))
    answer("nvmlDeviceGetComputeRunningProcesses", lambda gpu: [mine, *others])
    return module


def gpu_values(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "pynvml", module)
    values = MachineUsage(clock=iter(range(0, 10**6, 100)).__next__).values()
    return {name: value for name, value in values.items() if "gpu" in name}


def test_gpus_and_memory_of_this_process_are_recorded(monkeypatch):
    assert gpu_values(monkeypatch, fake_nvml()) == {
        "gpu/0/busy": 0.25,
        "gpu/0/memory_bytes": 1000.0,
        "gpu/0/memory_total_bytes": 8000.0,
        "gpu/1/busy": 0.5,
        "gpu/1/memory_bytes": 2000.0,
        "gpu/1/memory_total_bytes": 8000.0,
        "process/trainer/gpu_memory_bytes": 1200.0,
    }


@pytest.mark.parametrize("module", [None, fake_nvml(fails=("nvmlInit",)), fake_nvml(num_gpus=0)])
def test_machines_without_gpus_have_no_gpu_values(monkeypatch, module):
    assert gpu_values(monkeypatch, module) == {}


def test_gpus_that_answer_in_part_are_recorded_in_part(monkeypatch):
    fails = ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetComputeRunningProcesses")
    assert gpu_values(monkeypatch, fake_nvml(1, fails)) == {
        "gpu/0/memory_bytes": 1000.0,
        "gpu/0/memory_total_bytes": 8000.0,
    }
    assert gpu_values(monkeypatch, fake_nvml(fails=("nvmlDeviceGetMemoryInfo",))) == {}


def test_cpu_is_a_rate_and_memory_is_of_now():
    now = 0.0
    usage = MachineUsage(clock=lambda: now)
    own = usage._processes.groups["trainer"]
    own.cpu_seconds = usage._seconds["trainer"] = 0.0
    own.cpu_seconds += 30.0
    now = 1000.0
    values = usage.values()
    assert values["process/trainer/cpu_cores"] == pytest.approx(0.03, abs=0.02)
    assert values["process/trainer/memory_bytes"] > 1e7
    assert values["process/trainer/count"] == 1.0
    assert 0.0 <= values.get("machine/cpu_busy", 0.0) <= 1.0
    assert min(values["machine/memory_used_bytes"], values["machine/memory_free_bytes"]) > 0.0


def test_values_between_two_measurements_are_the_last_ones():
    usage = MachineUsage(clock=lambda: 1.0)
    first = usage.values()
    usage._processes.update = lambda: False
    assert usage.values() is first


def test_memory_of_accelerators_comes_from_jax():
    gpu = SimpleNamespace(id=3, memory_stats=lambda: {"bytes_in_use": 5, "peak_bytes_in_use": 9, "num_allocs": 1})
    cpu = SimpleNamespace(id=0, memory_stats=lambda: None)
    now = iter(range(0, 10**6, 100))
    values = MachineUsage([cpu, gpu], clock=now.__next__).values()
    assert {name: value for name, value in values.items() if name.startswith("device/")} == {
        "device/3/memory_bytes": 5.0,
        "device/3/memory_peak_bytes": 9.0,
    }


def test_nodes_of_a_cluster_report_rates_and_memory():
    def handle(node, cpu_seconds, memory):
        return SimpleNamespace(node=node, stats={"cpu_seconds": cpu_seconds, "memory_bytes": memory})

    starting = SimpleNamespace(node="b", stats={})
    before = usage_by_node([handle("a", 1.0, 10.0), handle("a", 2.0, 20.0), starting], "hosts")
    now = usage_by_node([handle("a", 4.0, 11.0), handle("a", 0.5, 21.0), handle("b", 3.0, 5.0)], "hosts")
    gained = {name: now[name] - before.get(name, 0.0) for name in now}
    assert traffic_values(now, gained, 2.0) == {
        "cluster/a/hosts/cpu_cores": 0.75,
        "cluster/a/hosts/memory_bytes": 32.0,
        "cluster/b/hosts/cpu_cores": 1.5,
        "cluster/b/hosts/memory_bytes": 5.0,
    }
