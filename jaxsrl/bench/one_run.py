"""One training benchmark in a process with its own devices, memory and compiled programs."""

import contextlib
from typing import Any

import psutil

from envpool_bridge.envs.config import EnvConfig
from jaxsrl.bench.processes import answer_settings, run_module

_LIMIT_SECONDS = 300.0


def run_apart(settings: dict[str, Any]) -> dict[str, Any]:
    """Runs `measure_training` in a new process; adds "peak_memory_bytes" of it and its workers to the results.

    Args:
        settings: Settings of measure_training, as JSON data; "num_cpu_devices" splits the processor.

    Raises:
        UserError: If the run raised it.
        RuntimeError: If the run failed otherwise, or took too long.
    """
    peak = 0

    def sample(pid: int) -> None:
        nonlocal peak
        peak = max(peak, memory_of_tree(pid))

    result = run_module("jaxsrl.bench.one_run", settings, _LIMIT_SECONDS, sample)
    return {**result, "peak_memory_bytes": peak}


def memory_of_tree(pid: int) -> int:
    """Returns the resident bytes of a process and its descendants, with shared pages counted once (Pss)."""
    resident = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # ended since it was listed
                resident += process.memory_full_info().pss
    return resident


def _measure(num_cpu_devices: int = 0, **settings: Any) -> dict[str, Any]:
    from jaxsrl.bench.train import measure_training

    if num_cpu_devices:
        from jaxsrl.machine.split_cpu import set_num_cpu_devices

        set_num_cpu_devices(num_cpu_devices)
    if "env" in settings:
        settings["env"] = EnvConfig(**settings["env"])
    return measure_training(**settings)


if __name__ == "__main__":
    answer_settings(_measure)
