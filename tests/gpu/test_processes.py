"""Whole runs from the command line: stopping, platforms, shared memory of the device, determinism, start-up."""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxsrl.evaluation.load_agent import load_agent
from tests.gpu.conftest import DRY
from tests.gpu.made_slots import same

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
PLATFORM = "cpu" if DRY else "cuda"
ATARI = not DRY and bool(importlib.util.find_spec("ale_py") and importlib.util.find_spec("cv2"))
EXACT = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"

# A shell ignores SIGINT in what it starts in the background, and so would everything started from there.
HEEDS_INTERRUPTS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def command(experiment, directory, *flags):
    own = ("--run.name", "run", "--run.directory", str(directory), "--eval.final-episodes", "0")
    return [sys.executable, "-m", "jaxsrl.cli.main", "train", experiment, *own, *flags]


def start(arguments, **environment):
    own = {**os.environ, **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": own, "cwd": ROOT}
    return subprocess.Popen([sys.executable, "-c", HEEDS_INTERRUPTS, *arguments], start_new_session=True, **pipes)


@contextlib.contextmanager
def running(*processes):
    try:
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def ends(arguments, seconds=140, **environment):
    """(exit status, output)."""
    with running(start(arguments, **environment)) as (process,):
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output


def small(updates, *flags):
    sizes = ("--run.num-envs", "16", "--run.rollout-length", "16", "--pool.num-workers", "2")
    return (*sizes, "--run.total-env-steps", str(256 * updates), *flags)


@pytest.mark.seconds(75)
def test_ctrl_c_in_the_first_minute_ends_with_130(row, size, tmp_path):
    experiment = "ppo_atari" if ATARI else "ppo_cartpole"
    flags = ("--network.torso", "impala_resnet") if ATARI else ()
    after = size((3, 8, 15, 25, 40), (10,))
    started = [
        start(
            command(
                experiment,
                tmp_path / str(seconds),
                "--run.total-env-steps",
                "1000000000",
                "--pool.num-workers",
                "2",
                *flags,
            )
        )
        for seconds in after
    ]
    begin, statuses = time.monotonic(), []
    with running(*started):
        for seconds, process in zip(after, started, strict=True):
            time.sleep(max(0.0, begin + seconds - time.monotonic()))
            process.send_signal(signal.SIGINT)
        for process in started:
            output, _ = process.communicate(timeout=100)
            statuses.append((process.returncode, output[-300:]))
    assert all(status == 130 for status, _ in statuses), statuses
    row(f"Ctrl-C after {', '.join(map(str, after))} s of {experiment} {' '.join(flags)}", "exit status 130 each")


@pytest.mark.seconds(40)
def test_host_replay_learns_with_accelerator_only_jax(tmp_path, size):
    flags = ("--run.num-envs", "8", "--pool.num-workers", "2", "--run.total-env-steps", str(size(20_000, 3_000)))
    arguments = command("rainbow_cartpole", tmp_path, *flags, "--replay.memory", "host")
    status, output = ends(arguments, JAX_PLATFORMS=PLATFORM)
    assert status == 0, output[-1000:]


@pytest.mark.seconds(40)
def test_acting_on_the_host_needs_jax_to_have_the_host(tmp_path):
    acting = ("--inference.platform", "cpu")
    if not DRY:
        status, output = ends(command("ppo_cartpole", tmp_path, *small(3), *acting), JAX_PLATFORMS=PLATFORM)
        assert status == 2, output[-1000:]
        assert "set JAX_PLATFORMS=cuda,cpu" in output
    status, output = ends(command("ppo_cartpole", tmp_path, *small(3), *acting), JAX_PLATFORMS=f"{PLATFORM},cpu")
    assert status == 0, output[-1000:]


def compute_processes():
    """Of the device, as nvidia-smi counts them; None without it."""
    if shutil.which("nvidia-smi") is None:
        return None
    listing = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    return len(subprocess.run(listing, capture_output=True, text=True, check=True, timeout=30).stdout.split())


def wait_for_checkpoint(directory, process):
    deadline = time.monotonic() + 90
    while not list(directory.glob("run/checkpoints/[0-9]*/MANIFEST.json")):
        assert process.poll() is None, process.communicate()[0][-1000:]
        assert time.monotonic() < deadline, "no checkpoint"
        time.sleep(0.2)


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


def params_of(directory):
    return load_agent(directory / "run").params


@pytest.mark.seconds(110)
@pytest.mark.parametrize("flags", [EXACT, ""], ids=["deterministic", "default"])
def test_the_same_command_twice_and_interrupted(flags, row, size, tmp_path):
    own = f"{os.environ.get('XLA_FLAGS', '')} {flags if not DRY else ''}".strip()
    updates, found = size(60, 6), {}
    for name in ("once", "twice", "interrupted"):
        where = tmp_path / name
        every = ("--checkpoint.interval-updates", "2")
        if name == "interrupted":
            endless = command("ppo_cartpole", where, *small(updates, *every))
            with running(start(endless, XLA_FLAGS=own)) as (process,):
                wait_for_checkpoint(where, process)
                process.send_signal(signal.SIGINT)
                process.wait(60)
        status, output = ends(command("ppo_cartpole", where, *small(updates, *every)), XLA_FLAGS=own)
        assert status == 0, output[-1000:]
        found[name] = params_of(where)
    results = [
        f"{name}: {'equal' if same(found['once'], found[name]) else 'different'}" for name in ("twice", "interrupted")
    ]
    row(f"ppo_cartpole, {updates} updates, {flags or 'XLA as it is'}", ", ".join(results))
    if flags:
        assert results == ["twice: equal", "interrupted: equal"]


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
