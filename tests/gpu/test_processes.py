"""Whole runs from the command line: how they stop, and on which platforms they act and sample."""

import signal
import time

import pytest

from tests.gpu.conftest import DRY
from tests.gpu.train_command import ATARI, PLATFORM, command, ends, running, small, start

pytestmark = pytest.mark.gpu


@pytest.mark.seconds(75)
def test_ctrl_c_in_the_first_minute_ends_with_130(row, size, tmp_path):
    experiment = "ppo_atari" if ATARI else "ppo_cartpole"
    flags = ("--network.torso", "impala_resnet") if ATARI else ()
    after = size((3, 8, 15, 25), (10,))
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
