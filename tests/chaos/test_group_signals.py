"""Stop signals that reach every process of a run, as `timeout`, systemd, Slurm and terminals send them, in every phase."""

import itertools
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from tests.chaos.sessions import ROOT, end_session, members, seconds_until_gone, signal_all

SIGNALS = {signal.SIGTERM: 143, signal.SIGUSR1: 75, signal.SIGHUP: 129, signal.SIGINT: 130}
MARKS = {
    "start": "in start",
    "compilation": "Compiling jit(update)",
    "training": "env steps/s",
    "evaluation": "trained ",
}
STAYS_IN_START = """
import dataclasses, time
from experiments.ppo_cartpole import EXPERIMENT
from jaxsrl.experiment import cli

def make_agent(config, spec, network):
    print("in start", flush=True)
    time.sleep(600)

cli(dataclasses.replace(EXPERIMENT, make_agent=make_agent))
"""
TAKES_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "jaxsrl.cli.main", "train", "ppo_cartpole", *sys.argv[1:]])
"""
ENV_STEPS_PER_UPDATE = 64
SMALL = (
    *("--run.num-envs", "8", "--run.rollout-length", "8", "--pool.num-workers", "2", "--agent.num-minibatches", "1"),
    *("--agent.num-epochs", "1", "--run.name", "run", "--metrics.interval-seconds", "0.1"),
    *("--checkpoint.interval-updates", "0"),
)


@pytest.fixture(autouse=True)
def hangup_is_heard():
    """A test that was started by `nohup` would hand on that SIGHUP is ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def start(directory, phase, plan_name, *flags):
    """Starts `jaxsrl train` in a session of its own, with a run that stays in this phase."""
    experiment = "ppo_cartpole"
    if phase == "start":
        (directory / "stays_in_start.py").write_text(STAYS_IN_START)
        experiment = str(directory / "stays_in_start.py")
    updates, episodes = (4, 10**6) if phase == "evaluation" else (10**9, 0)
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "jaxsrl.cli.main", "train", experiment),
            *arguments(directory, updates, episodes, plan_name),
            *flags,
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "JAX_LOG_COMPILES": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def arguments(directory, updates, episodes, plan_name):
    budget = f"--run.total-env-steps {updates * ENV_STEPS_PER_UPDATE} --eval.final-episodes {episodes}"
    return [*SMALL, *budget.split(), "--run.directory", str(directory), "--plan", plan_name]


def stop(directory, phase, numbers, plan_name="single_learner_fine", *flags):
    """Sends signals to the session of a run in this phase, and checks how the run ends."""
    process = start(directory, phase, plan_name, *flags)
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if MARKS[phase] in line:
                break
        num_processes = len(members(process.pid))
        for number in numbers:
            signal_all(process.pid, number)
            time.sleep(0.01 * (len(numbers) - 1))  # or the kernel would make one of two
        rest, _ = process.communicate(timeout=120)
        output = "".join(lines) + rest
        seconds_until_gone(process.pid, 30.0)
    finally:
        end_session(process)
    assert process.returncode == SIGNALS[numbers[0]], output
    assert f"stopped by {numbers[0].name}" in output, output
    assert num_processes >= (4 if phase in ("compilation", "training") else 1), "the fork server and two workers"
    checkpoints = list((directory / "run" / "checkpoints").glob("*"))
    assert bool(checkpoints) == (phase != "start"), output
    return checkpoints


def assert_resumes(directory, checkpoints):
    """Resumes with a budget of two more updates."""
    (done,) = (int("".join(filter(str.isdigit, path.name))) for path in checkpoints)
    resumed = subprocess.run(
        [
            *(sys.executable, "-m", "jaxsrl.cli.main", "train", "ppo_cartpole"),
            *arguments(directory, done + 2, 0, "single_learner_fine"),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert resumed.returncode == 0, resumed.stderr
    assert f"at update {done} of {done + 2}" in resumed.stdout


@pytest.mark.parametrize(
    ("phase", "numbers"),
    [
        ("start", [signal.SIGUSR1]),
        ("compilation", [signal.SIGTERM]),
        ("training", [signal.SIGUSR1]),
        ("training", [signal.SIGTERM, signal.SIGTERM]),  # `timeout` sends it to the process and to the group
        ("evaluation", [signal.SIGHUP]),
    ],
)
def test_a_stop_signal_to_the_group_ends_the_run_in_order(tmp_path, phase, numbers):
    checkpoints = stop(tmp_path, phase, numbers)
    if len(numbers) > 1:
        assert_resumes(tmp_path, checkpoints)


@pytest.mark.slow
def test_a_run_whose_terminal_closes_saves(tmp_path):
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TAKES_TERMINAL, *arguments(tmp_path, 10**9, 0, "single_learner_fine")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
    )
    os.close(end)
    try:
        metrics = tmp_path / "run" / "metrics.jsonl"
        shown = b""
        while not (metrics.exists() and metrics.stat().st_size):
            shown += os.read(terminal, 4096)
            assert process.poll() is None, shown.decode()
        os.close(terminal)
        assert process.wait(120) == 129
        seconds_until_gone(process.pid, 30.0)
    finally:
        end_session(process)
    assert list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_stop_signal_spares_local_cluster_until_checkpoint(tmp_path, number):
    pytest.importorskip("ray")
    flags = ("--cluster.address", "local", "--cluster.num-hosts", "2")
    stop(tmp_path, "training", [number], "single_learner_fine", *flags)


@pytest.mark.slow
def test_fifty_stop_signals_to_the_group_end_runs_in_order(tmp_path):
    cases = itertools.islice(
        itertools.cycle(itertools.product(("compilation", "training", "evaluation", "start"), SIGNALS)), 50
    )
    for turn, (phase, number) in enumerate(cases):
        directory = tmp_path / str(turn)
        directory.mkdir()
        plan_name = "single_learner_coarse" if turn % 5 == 4 else "single_learner_fine"  # of both kinds of workers
        checkpoints = stop(directory, phase, [number], plan_name)
        if phase == "training" and plan_name == "single_learner_fine" and turn % 2:
            assert_resumes(directory, checkpoints)
