"""Use and memory of the NVIDIA GPUs of this machine, if `nvidia-ml-py` is installed."""

import importlib
from collections.abc import Iterable
from typing import Any, NamedTuple


class GPUUsage(NamedTuple):
    """One GPU.

    Attributes:
        busy: fraction of the last sample period in which a kernel ran; None if unknown.
        memory_bytes: used by all processes.
        total_bytes: memory of the GPU.
        bytes_by_pid: memory of each process that the driver lists.
    """

    busy: float | None
    memory_bytes: int
    total_bytes: int
    bytes_by_pid: dict[int, int]


class GPUs:
    """The GPUs of this machine, in the order of nvidia-smi; none without the package or the driver. Thread-safety: one thread."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        try:
            self._nvml: Any = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            self._handles = [
                self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(self._nvml.nvmlDeviceGetCount())
            ]
        except ModuleNotFoundError:
            self._nvml = None
        except self._error:  # there is no driver
            self._handles = []

    @property
    def _error(self) -> type[Exception]:
        return self._nvml.NVMLError

    def read(self) -> dict[int, GPUUsage]:
        """Returns the usage by GPU number, without GPUs that do not answer."""
        usage: dict[int, GPUUsage] = {}
        for index, handle in enumerate(self._handles):
            try:
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            except self._error:
                continue
            usage[index] = GPUUsage(self._busy(handle), int(memory.used), int(memory.total), self._by_pid(handle))
        return usage

    def _busy(self, handle: Any) -> float | None:
        try:
            return self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0
        except self._error:  # a part of a GPU (MIG) has no rate
            return None

    def _by_pid(self, handle: Any) -> dict[int, int]:
        try:
            processes: Iterable[Any] = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except self._error:
            return {}
        return {int(each.pid): int(each.usedGpuMemory) for each in processes if each.usedGpuMemory is not None}
