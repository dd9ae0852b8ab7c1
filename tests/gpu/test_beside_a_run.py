"""What must not run next to other items: processes counted on the device, time from start to end."""

import os
import shutil
import subprocess
import sys
import time

import pytest

from tests.gpu.train_command import ATARI, ROOT, command, ends, running, small, start, wait_for_checkpoint

pytestmark = pytest.mark.gpu


def compute_processes():
    """Of the device, as nvidia-smi counts them; None without it."""
    if shutil.which("nvidia-smi") is None:
        return None
    listing = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    return len(subprocess.run(listing, capture_output=True, text=True, check=True, timeout=30).stdout.split())


@pytest.mark.seconds(60)
@pytest.mark.parametrize("policy", ["single_learner_fine", "single_learner_coarse"])
def test_run_is_one_device_process_next_to_evaluation(policy, row, size, tmp_path):
    before = compute_processes()
    sizes = ("--run.num-envs", "64", "--pool.num-workers", str(size(16, 2)), "--run.total-env-steps", "1000000000")
    arguments = command("ppo_cartpole", tmp_path, *sizes, "--plan", policy, "--checkpoint.interval-updates", "20")
    # The run takes three quarters of the memory, as runs of users do; evaluation has to do with the rest.
    with running(start(arguments, XLA_PYTHON_CLIENT_PREALLOCATE="true")) as (process,):
        wait_for_checkpoint(tmp_path, process)
        during = compute_processes()
        evaluation = [sys.executable, "-m", "jaxsrl.cli.main", "evaluate", str(tmp_path / "run"), "--episodes", "4"]
        own = {name: value for name, value in os.environ.items() if name != "XLA_PYTHON_CLIENT_PREALLOCATE"}
        done = subprocess.run(evaluation, cwd=ROOT, env=own, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    if before is not None and during is not None:
        assert during - before == 1
    counted = "not counted (no nvidia-smi)" if before is None or during is None else during - before
    row(
        f"{policy}, {size(16, 2)} workers: processes on the device", str(counted), "`jaxsrl evaluate` beside it: exit 0"
    )


@pytest.mark.seconds(60)
def test_first_update_time_with_compilation_cache(row, tmp_path):
    experiment = "ppo_atari" if ATARI else "ppo_cartpole"
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    seconds = []
    for name in ("without", "with"):
        begin = time.monotonic()
        status, output = ends(command(experiment, tmp_path / name, *small(1)), **cache)
        assert status == 0, output[-1000:]
        seconds.append(time.monotonic() - begin)
    row(
        f"{experiment}: one update, from start to end of the process",
        f"{seconds[0]:.1f} s, with compiled programs {seconds[1]:.1f} s",
        "goals 60 s and 10 s",
    )
