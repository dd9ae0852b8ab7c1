"""Machines other than Linux on x86-64: plans without worker processes run, and the pool is rejected in one line."""

import importlib
import platform
import subprocess
import sys
from functools import partial
from pathlib import Path

import gymnasium
import pytest

import envpool_bridge
from envpool_bridge.errors import UserError
from envpool_bridge.shm.segment import reserve, validate_machine
from envpool_bridge.vector_env import PoolVectorEnv
from jaxsrl.machine.doctor.checks import check_python

ROOT = Path(__file__).parents[2]
SHORT = (
    "--run.total-env-steps",
    "4096",
    "--eval.final-episodes",
    "1",
    "--run.num-envs",
    "8",
    "--agent.num-epochs",
    "1",
)
MESSAGE = "worker processes need Linux on x86-64, got Darwin on arm64: use gymnasium.vector.SyncVectorEnv"


def train_as_on_macos(directory, *flags):
    command = [sys.executable, "-m", "tests.support.without_linux", *SHORT, "--run.directory", str(directory), *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("flags", [("--plan", "serial"), ("--plan", "device_only", "--env.suite", "jax")], ids=" ".join)
def test_plans_without_workers_run_on_macos(flags, tmp_path):
    done = train_as_on_macos(tmp_path, *flags)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "evaluated 1 greedy episodes" in done.stdout


def test_plans_with_workers_are_rejected_on_macos(tmp_path):
    done = train_as_on_macos(tmp_path, "--plan", "single_learner_fine")
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert errors[0].startswith(f"error: {MESSAGE}")
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*_seed0"))


@pytest.fixture
def arm_mac(monkeypatch):
    """This process believes to run on macOS with arm64."""
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")


@pytest.mark.usefixtures("arm_mac")
@pytest.mark.parametrize(
    "use", [lambda: PoolVectorEnv(partial(gymnasium.make, "CartPole-v1"), num_envs=2), lambda: reserve(64, "a test")]
)
def test_pool_is_rejected_on_arm_before_it_starts(use):
    with pytest.raises(UserError, match=MESSAGE):
        use()


@pytest.mark.usefixtures("arm_mac")
def test_doctor_reports_a_machine_without_workers():
    check = check_python()
    assert not check.is_well
    assert check.advice.startswith(MESSAGE)


@pytest.mark.parametrize(
    ("system", "machine", "accepted"),
    [("Linux", "x86_64", True), ("Linux", "aarch64", False), ("Darwin", "x86_64", False), ("Linux", "AMD64", True)],
)
def test_validate_machine_accepts_linux_on_x86_only(system, machine, accepted, monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    if accepted:
        validate_machine()
    else:
        with pytest.raises(UserError, match=f"got {system} on {machine}"):
            validate_machine()


def test_import_on_windows_is_rejected_in_one_line(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ImportError, match=r"^jaxsrl and envpool_bridge do not run on Windows: use Linux, .*WSL 2\)$"):
        importlib.reload(envpool_bridge)
