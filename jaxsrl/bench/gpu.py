"""`make gpu`: the tests and benchmarks that need an accelerator, in one command, recorded in docs/benchmarks.md."""

import datetime
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_TABLE = Path("docs/benchmarks.md")


def bench_gpu() -> None:
    """Runs everything and appends rows with the hardware; says so and returns where there is no accelerator."""
    import jax

    device = jax.local_devices()[0]
    if device.platform == "cpu":
        print("no accelerator here: jax sees only the CPU; nothing to run (install jaxsrl[cuda] or jaxsrl[tpu])")  # noqa: T201
        return
    # Unlike the CPU tests, these must see the accelerator; jax gives it to one process at a time by preallocation.
    environment = {**os.environ, "JAX_PLATFORMS": "", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "tests/gpu"]
    status = subprocess.run(command, env=environment, check=False, timeout=240).returncode
    if status != 0:
        sys.exit(status)
    hardware = f"{len(jax.local_devices())} x {device.device_kind}, {len(os.sched_getaffinity(0))} cores, jax {jax.__version__}"
    rows = [_pool_row(_pool_result(), hardware), *(_row(result, hardware) for result in _results())]
    _TABLE.parent.mkdir(exist_ok=True)
    with open(_TABLE, "a") as file:
        file.writelines(rows)
    print("".join(rows) + f"appended to {_TABLE}")  # noqa: T201


def _results() -> list[dict[str, Any]]:
    from agents.networks.config import NetworkConfig
    from envpool_bridge.adapters.environment import EnvConfig
    from jaxsrl.bench.train import bench_train

    workers = _num_workers()
    results = [bench_train(workers=workers, num_envs=64 * workers, env_steps=4_000_000)]
    if importlib.util.find_spec("ale_py") and importlib.util.find_spec("cv2"):
        pong = EnvConfig("ALE/Pong-v5", suite="atari")
        network = NetworkConfig("nature_cnn", (512,), "relu")
        results.append(bench_train(workers, 16 * workers, env_steps=300_000, env=pong, network=network))
    return results


def _pool_result() -> dict[str, Any]:
    # In a process of its own: AsyncVectorEnv forks, which a process that has begun to use jax must not do.
    command = [sys.executable, "-m", "jaxsrl.cli", "bench", "pool", "--workers", str(_num_workers()), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout.splitlines()[-1])


def _num_workers() -> int:
    return max(2, len(os.sched_getaffinity(0)) - 2)


def _pool_row(result: dict[str, Any], hardware: str) -> str:
    size = f"{result['workers']} workers x {result['envs_per_worker']} envs"
    speed = f"{result['env_steps_per_second']:,.0f} env steps/s ({result['frames_per_second']:,.0f} frames/s)"
    ratios = (
        f"{result['ratio_to_limit']:.2f} of bare processes, {result['ratio_to_async_vector_env']:.1f} x AsyncVectorEnv"
    )
    return f"| {datetime.date.today()} | {hardware} | pool {result['env_id']}: {size} | {speed} | {ratios} |\n"


def _row(result: dict[str, Any], hardware: str) -> str:
    size = f"{result['workers']} workers, {result['num_envs']} rows, T={result['rollout_length']}, {result['network']}"
    waits = ", ".join(f"{part} {result[f'wait_share_{part}']:.0%}" for part in ("environment", "inference", "learner"))
    speed = f"{result['env_steps_per_second']:,.0f} env steps/s ({result['frames_per_second']:,.0f} frames/s)"
    return f"| {datetime.date.today()} | {hardware} | train {result['env_id']}: {size} | {speed} | waits: {waits} |\n"
