"""Speed of whole runs: the pool, PPO on CartPole and Pong, where acting is best, how long a learner waits for samples."""

import json
import os
import subprocess
import sys

import pytest

from agents.networks.config import NetworkConfig
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.bench.train import measure_training
from tests.gpu.conftest import DRY
from tests.gpu.train_command import HAS_ATARI, command, ends

pytestmark = pytest.mark.gpu
WORKERS = 2 if DRY else max(2, len(os.sched_getaffinity(0)) - 2)


def cells(result):
    waits = ", ".join(f"{part} {result[f'wait_share_{part}']:.0%}" for part in ("environment", "inference", "learner"))
    call = f"{result['inference_batch_rows']:.0f} rows a call, {result['inference_latency_ms']:.2f} ms"
    return speed_of(result), f"waits: {waits}; {call}"


def speed_of(result):
    steps, frames = result["env_steps_per_second"], result["frames_per_second"]
    return f"{steps:,.0f} env steps/s" + (f" ({frames:,.0f} frames/s)" if frames != steps else "")


def size_of(result):
    return f"{result['workers']} workers, {result['num_envs']} rows, T={result['rollout_length']}, {result['network']}"


@pytest.mark.seconds(35)
@pytest.mark.parametrize("env", ["CartPole-v1", "ALE/Pong-v5"])
def test_the_pool(env, row):
    if env.startswith("ALE") and not HAS_ATARI:
        pytest.skip("not run: ale_py or cv2 is not installed")
    # In a process of its own: AsyncVectorEnv forks, which a process that has begun to use jax must not do.
    arguments = [sys.executable, "-m", "jaxsrl.cli.main", "bench", "pool", "--env", env, "--workers", str(WORKERS)]
    arguments += ["--envs-per-worker", "2" if DRY else "16", "--json"]
    arguments += ["--seconds", "0.2", "--rounds", "1"] if DRY else ["--seconds", "2", "--rounds", "10"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=120)
    result = json.loads(done.stdout.splitlines()[-1])
    row(
        f"pool {result['env_id']}: {result['workers']} workers x {result['envs_per_worker']} envs",
        speed_of(result),
        f"{result['ratio_to_limit']:.2f} of bare processes, {result['ratio_to_async_vector_env']:.1f} x AsyncVectorEnv",
    )


@pytest.mark.seconds(30)
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("on the device", {}),
        ("on the device, lanes merged", {"inference.batching": "merged"}),
        ("on the host beside it", {"inference.platform": "cpu"}),
    ],
    ids=["device", "merged", "host"],
)
def test_training_on_cartpole_by_where_acting_is(name, changes, row, size):
    steps = size(1_500_000, 30_000)
    result = measure_training(workers=WORKERS, num_envs=size(64, 8) * WORKERS, env_steps=steps, changes=changes)
    row(f"train CartPole-v1, acting {name}: {size_of(result)}", *cells(result))


@pytest.mark.seconds(60)
@pytest.mark.parametrize("changes", [{}, {"inference.platform": "cpu"}], ids=["device", "host"])
def test_training_on_pong(changes, row, size):
    if not HAS_ATARI:
        pytest.skip("not run: ale_py or cv2 is not installed")
    pong, network = (
        EnvConfig("ALE/Pong-v5", suite="atari"),
        NetworkConfig("nature_cnn", (size(512, 16),), activation="relu"),
    )
    steps = size(300_000, 600)
    result = measure_training(
        WORKERS, size(16, 2) * WORKERS, env_steps=steps, env=pong, network=network, changes=changes
    )
    where = "host" if changes else "device"
    row(f"train ALE/Pong-v5, acting on the {where}: {size_of(result)}", *cells(result))


@pytest.mark.seconds(40)
def test_samples_are_ready_before_the_learner_asks(row, size, tmp_path):
    flags = ("--run.num-envs", "16", "--pool.num-workers", "2", "--metrics.interval-seconds", "1")
    steps = ("--run.total-env-steps", str(size(30_000, 3_000)), "--replay.memory", "host")
    status, output = ends(command("rainbow_cartpole", tmp_path, *flags, *steps))
    assert status == 0, output[-1000:]
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    found = {name: value for name, value in last.items() if "sample_wait" in name or name.startswith("speed/")}
    row("rainbow_cartpole, replay on the host", ", ".join(f"{name} {value:,.3g}" for name, value in found.items()))
