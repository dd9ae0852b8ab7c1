"""However a run ends, no process and no shared-memory name outlives it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.shared_names import names_left

ROOT = Path(__file__).parents[2]
_SECONDS = 150.0  # for what takes a moment on a machine that does nothing else
NUM_CHILDREN = 5  # the fork server and two workers with their keepers
TRAIN = [
    *(sys.executable, str(ROOT / "experiments" / "ppo_cartpole.py")),
    *("--run.name", "run", "--metrics.interval-seconds", "0.1", "--eval.final-episodes", "4"),
]
# An environment that lives in a module of its own, where workers find it, and says when it is about to go wrong.
ENVIRONMENTS = """
import ctypes, os, signal, time
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.probes.single_agent import ConstantReward

class Hangs(ConstantReward):
    def reset(self, *, seed=None, options=None):
        ctypes.PyDLL(None).sleep(600)  # in C, with the interpreter's lock held

class GoesWrong(ConstantReward):
    num_steps = 0
    def step(self, action):
        self.num_steps += 1
        if self.num_steps == 100:
            print("ready", flush=True)
            time.sleep(1)
            self.go_wrong()
        return super().step(action)

class Raises(GoesWrong):
    def go_wrong(self):
        raise ValueError("out of ideas")

class Exits(GoesWrong):
    def go_wrong(self):
        os._exit(7)

class IsKilled(GoesWrong):
    def go_wrong(self):
        os.kill(os.getpid(), signal.SIGKILL)

class Config(EnvConfig):
    def source(self):
        return GymnasiumSource(globals()[self.id])
"""
TRAIN_IN = """
import dataclasses, sys
from environments_of_tests import Config
from experiments.ppo_cartpole import EXPERIMENT
from jaxsrl.config.run_config import RunConfig
from jaxsrl.experiment import cli
run = RunConfig(name="run", directory=sys.argv[2], num_envs=8, total_env_steps=10**8)
cli(dataclasses.replace(EXPERIMENT, env=Config(sys.argv[1]), run=run), [])
"""
POOL_OF = """
import sys, time
from environments_of_tests import GymnasiumSource, ConstantReward, Hangs
from envpool_bridge.envs.protocol import GymnasiumReset
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.pool import EnvPool
pool = EnvPool(GymnasiumSource(globals()[sys.argv[1]]), PoolShape(2, 1, 1, 1, 4, 2))
pool.start([GymnasiumReset((0,))] * 2)
print("ready", flush=True)
"""


class Run:
    """A process in a session of its own, by which whatever it starts is found even when its parent is gone."""

    def __init__(self, command: list[str], directory: Path) -> None:
        (directory / "environments_of_tests.py").write_text(ENVIRONMENTS)
        path = {"PYTHONPATH": f"{ROOT}:{directory}", "PYTHONUNBUFFERED": "1"}
        self.names_before = names_left()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **path},
            start_new_session=True,
        )

    def members(self) -> set[int]:
        """Living processes of the session."""
        found = set()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if entry.name.isdigit():
                    state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                    if int(session) == self.process.pid and state != "Z":
                        found.add(int(entry.name))
        return found

    def wait_for(self, text: str) -> None:
        """Reads until `text` is printed; at that time all processes must be there, or what follows would show nothing."""
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if text in line:
                break
        assert len(self.members() - {self.process.pid}) == NUM_CHILDREN, "".join(lines)

    def assert_left_nothing(self, seconds: float = _SECONDS) -> None:
        """Fails unless all processes and names are gone within so many seconds."""
        deadline = time.monotonic() + seconds
        while any(left := (self.members(), names_left() - self.names_before)):
            assert time.monotonic() < deadline, f"left behind: processes {left[0]}, names in /dev/shm {left[1]}"
            time.sleep(0.02)


@pytest.fixture
def start(tmp_path):
    """Starts runs, and ends what a failed test leaves of them."""
    runs = []

    def start_run(*command):
        runs.append(Run([str(part) for part in command], tmp_path))
        return runs[-1]

    yield start_run
    for run in runs:
        for pid in run.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.process.communicate()


def start_training(start, directory: Path, env_steps: int = 10**8) -> Run:
    run = start(*TRAIN, "--run.directory", directory, "--run.total-env-steps", env_steps)
    run.wait_for("env steps/s")
    return run


def test_finished_run_leaves_no_resources(start, tmp_path):
    run = start_training(start, tmp_path, env_steps=20_000)
    output, _ = run.process.communicate(timeout=_SECONDS)
    assert run.process.returncode == 0, output
    assert "trained " in output
    run.assert_left_nothing()


@pytest.mark.slow  # test_worker_restarts.py and test_plans.py end runs in a process that looks after itself
@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ("Raises", "ValueError: out of ideas"),
        ("Exits", "exit status 7"),
        ("IsKilled", "SIGKILL"),
    ],
)
def test_failed_environment_leaves_no_resources(start, tmp_path, environment, problem):
    run = start(sys.executable, "-c", TRAIN_IN, environment, tmp_path)
    run.wait_for("ready")
    output, _ = run.process.communicate(timeout=_SECONDS)
    assert run.process.returncode == 1, output
    assert problem in output
    run.assert_left_nothing()


@pytest.mark.parametrize("last", ["", "raise RuntimeError('in the main process')", "import os; os._exit(1)"])
def test_a_pool_that_is_never_closed_ends_with_its_process(start, last):
    run = start(sys.executable, "-c", f"{POOL_OF}\nsys.stdin.readline()\n{last}", "ConstantReward")
    run.wait_for("ready")
    output, _ = run.process.communicate("go on\n", timeout=_SECONDS)
    assert run.process.returncode == (1 if last else 0), output
    run.assert_left_nothing()


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_signal_saves_checkpoint_and_leaves_no_resources(start, tmp_path, number):
    run = start_training(start, tmp_path)
    run.process.send_signal(number)
    output, _ = run.process.communicate(timeout=_SECONDS)
    assert run.process.returncode == 128 + number
    assert f"stopped by {number.name}" in output
    assert list((tmp_path / "run" / "checkpoints").iterdir())
    run.assert_left_nothing()


@pytest.mark.slow  # of a pool alone: tests/chaos/test_main_killed.py
def test_a_kill_of_the_main_process_takes_the_workers_with_it(start, tmp_path):
    run = start_training(start, tmp_path)
    run.process.kill()
    run.process.communicate(timeout=_SECONDS)
    run.assert_left_nothing()


@pytest.mark.slow  # of a handler alone: tests/unit/jaxsrl/machine/test_lifecycle.py
def test_a_second_interrupt_leaves_at_once(start, tmp_path):
    run = start_training(start, tmp_path)
    run.process.send_signal(signal.SIGSTOP)  # both signals arrive before it can finish the update
    run.process.send_signal(signal.SIGTERM)
    run.process.send_signal(signal.SIGINT)
    run.process.send_signal(signal.SIGCONT)
    began = time.monotonic()
    run.process.communicate(timeout=_SECONDS)
    assert time.monotonic() - began < 2.0
    assert run.process.returncode in {130, 143}
    run.assert_left_nothing()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_hung_native_workers_die_with_the_main_process(start, number):
    # A shell that starts the tests in the background has them ignore SIGINT, and so whatever they start.
    heeds = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    run = start(sys.executable, "-c", f"{heeds}\n{POOL_OF}\ntime.sleep(60)", "Hangs")
    run.wait_for("ready")
    run.process.send_signal(number)
    run.process.communicate(timeout=_SECONDS)
    run.assert_left_nothing()
