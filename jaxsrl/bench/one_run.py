"""One benchmark of training in a process of its own, with devices, memory and compiled programs of its own."""

from typing import Any

from envpool_bridge.envs.config import EnvConfig
from jaxsrl.bench.process_memory import memory_of_tree
from jaxsrl.bench.processes import answer_settings, run_module

_LIMIT_SECONDS = 300.0


def run_apart(settings: dict[str, Any]) -> dict[str, Any]:
    """`bench_train` in a new process, with "peak_memory_bytes" of it and its workers beside the results.

    Args:
        settings: of bench_train, as JSON data; "num_cpu_devices" splits the processor.

    Raises:
        UserError: what the run says it cannot do.
        RuntimeError: it failed otherwise, or took too long.
    """
    peak = 0

    def sample(pid: int) -> None:
        nonlocal peak
        peak = max(peak, memory_of_tree(pid))

    result = run_module("jaxsrl.bench.one_run", settings, _LIMIT_SECONDS, sample)
    return {**result, "peak_memory_bytes": peak}


def _measure(num_cpu_devices: int = 0, **settings: Any) -> dict[str, Any]:
    from jaxsrl.bench.train import bench_train

    if num_cpu_devices:
        from jaxsrl.machine.split_cpu import set_num_cpu_devices

        set_num_cpu_devices(num_cpu_devices)
    if "env" in settings:
        settings["env"] = EnvConfig(**settings["env"])
    return bench_train(**settings)


if __name__ == "__main__":
    answer_settings(_measure)
