"""One benchmark of training in a process of its own: its devices, its memory and its compiled programs are nobody else's.

Run: python -m jaxsrl.bench.one_run '{"host_devices": 2, "workers": 2, "env": {"id": "CartPole-v1"}, "changes": {...}}'
"""

import json
import subprocess
import sys
import time
from typing import Any

from envpool_bridge.adapters.environment import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.bench.process_memory import memory_of_tree

_SAMPLE_SECONDS = 0.25
_LIMIT_SECONDS = 300.0


def run_apart(settings: dict[str, Any]) -> dict[str, Any]:
    """`bench_train` in a new process, with "peak_memory_bytes" of it and its workers beside the results.

    Args:
        settings: of bench_train, as JSON data; "host_devices" splits the processor.

    Raises:
        UserError: what the run says it cannot do.
        RuntimeError: it failed otherwise, or took too long.
    """
    command = [sys.executable, "-m", "jaxsrl.bench.one_run", json.dumps(settings)]
    deadline, peak = time.monotonic() + _LIMIT_SECONDS, 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while True:
            try:
                out, err = process.communicate(timeout=_SAMPLE_SECONDS)
                break
            except subprocess.TimeoutExpired:
                peak = max(peak, memory_of_tree(process.pid))
            if time.monotonic() > deadline:
                process.terminate()
                raise RuntimeError(f"the benchmark {settings} did not end within {_LIMIT_SECONDS:.0f} s")
    if process.returncode == 2:
        raise UserError(err.strip().splitlines()[-1].removeprefix("error: "))
    if process.returncode != 0:
        raise RuntimeError(f"the benchmark {settings} ended with status {process.returncode}:\n{err}")
    return {**json.loads(out.splitlines()[-1]), "peak_memory_bytes": peak}


def _main(text: str) -> None:
    from jaxsrl.bench.train import bench_train

    settings = json.loads(text)
    host_devices = settings.pop("host_devices", 0)
    if host_devices:
        from jaxsrl.runtime.host_devices import split_host

        split_host(host_devices)
    if "env" in settings:
        settings["env"] = EnvConfig(**settings["env"])
    print(json.dumps(bench_train(**settings)))  # noqa: T201


if __name__ == "__main__":
    from jaxsrl.runtime.launch import exit_on_user_error

    exit_on_user_error(_main)(sys.argv[1])
