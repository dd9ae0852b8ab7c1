"""CPU time and memory of a run's processes, of the host and of its GPUs, as values of records."""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from envpool_bridge.limits import free_host_bytes
from jaxsrl.machine.gpu_usage import GPUs
from jaxsrl.machine.process_usage import ProcessTree


class MachineUsage:
    """Usage by this run and by the whole machine. Thread-safety: one thread.

    It reads counters of the system and never waits; what is too expensive at this interval keeps its last value (`ProcessTree`).
    If the system does not give them, all values stay.

    Args:
        devices: Devices of jax, whose memory to read; those that use the host's memory report none.
        clock: returns seconds.
    """

    def __init__(self, devices: Sequence[Any] = (), clock: Callable[[], float] = time.perf_counter) -> None:
        self._devices, self._clock = devices, clock
        self._gpus = GPUs()
        self._processes = ProcessTree(clock)
        self._values: dict[str, float] = {}
        self._seconds, self._host = self._cpu_seconds(), _host_seconds()
        self._measured_at = clock()

    def values(self) -> dict[str, float]:
        """Returns values by metric name: rates are since the last measurement, all else is of now."""
        with contextlib.suppress(OSError, psutil.Error):  # no free descriptors, or a /proc that hides processes
            self._measure()
        return self._values

    def _measure(self) -> None:
        if not self._processes.update():
            return
        now, before = self._clock(), self._seconds
        elapsed = max(now - self._measured_at, 1e-9)
        self._measured_at, self._seconds = now, self._cpu_seconds()
        values = self._host_values()
        for group, usage in self._processes.groups.items():
            values[f"process/{group}/cpu_cores"] = (usage.cpu_seconds - before.get(group, 0.0)) / elapsed
            values[f"process/{group}/memory_bytes"] = float(usage.memory_bytes)
            values[f"process/{group}/count"] = float(len(usage.pids))
        self._values = values | self._gpu_values() | self._device_values()

    def _cpu_seconds(self) -> dict[str, float]:
        return {group: usage.cpu_seconds for group, usage in self._processes.groups.items()}

    def _host_values(self) -> dict[str, float]:
        (busy_before, before), self._host = self._host, _host_seconds()
        busy, total = self._host
        memory, free = psutil.virtual_memory(), free_host_bytes()
        values = {
            "machine/memory_used_bytes": float(memory.total - memory.available),
            "machine/memory_free_bytes": float(memory.available if free is None else free),
        }
        if total > before:
            values["machine/cpu_busy"] = min(1.0, max(0.0, (busy - busy_before) / (total - before)))
        return values

    def _gpu_values(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for index, gpu in self._gpus.read().items():
            if gpu.busy is not None:
                values[f"gpu/{index}/busy"] = gpu.busy
            values[f"gpu/{index}/memory_bytes"] = float(gpu.memory_bytes)
            values[f"gpu/{index}/memory_total_bytes"] = float(gpu.total_bytes)
            for group, usage in self._processes.groups.items():
                held = sum(gpu.bytes_by_pid.get(pid, 0) for pid in usage.pids)
                if held:
                    name = f"process/{group}/gpu_memory_bytes"
                    values[name] = values.get(name, 0.0) + held
        return values

    def _device_values(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for device in self._devices:
            statistics = device.memory_stats() or {}
            for name, key in (("memory_bytes", "bytes_in_use"), ("memory_peak_bytes", "peak_bytes_in_use")):
                if key in statistics:
                    values[f"device/{device.id}/{name}"] = float(statistics[key])
        return values


def _host_seconds() -> tuple[float, float]:
    """Returns the seconds in which the cores of this machine worked, and the sum of all their time."""
    times = psutil.cpu_times()
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # these are in user and nice
    return total - times.idle - getattr(times, "iowait", 0.0), total
