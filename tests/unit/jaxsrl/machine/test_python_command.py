"""Commands of this package, next to a user's file that has the name of a module of Python."""

import subprocess
import sys
from pathlib import Path

import pytest

from jaxsrl.machine.python_command import jaxsrl_command, module_command, python_command
from jaxsrl.results import train_missing as module
from jaxsrl.results.task_list import TaskRuns
from jaxsrl.tune.managed_runs import train_task

POOL = """
from envpool_bridge.vector_env.factory import make_vec
envs = make_vec("CartPole-v1", num_envs=2)
print(envs.reset(seed=0)[0].shape)
envs.close()
"""
PRINT = "import logging; print(*sys.argv[1:], logging.INFO)"


@pytest.fixture
def shadowed(tmp_path, monkeypatch):
    """A working directory with files `logging.py` and `json.py` that must not be imported."""
    for name in ("logging.py", "json.py"):
        (tmp_path / name).write_text("raise ImportError('of the working directory')\n")
    monkeypatch.chdir(tmp_path)


def test_python_command_imports_nothing_of_the_working_place(shadowed):
    done = subprocess.run(python_command(PRINT, "a b", "c"), capture_output=True, text=True, timeout=150, check=False)
    assert (done.stdout, done.stderr) == ("a b c 20\n", "")


def test_module_command_runs_next_to_a_file_that_shadows(shadowed):
    command = module_command("json.tool", "--compact", "-")
    done = subprocess.run(command, input="[1, 2]", capture_output=True, text=True, timeout=150, check=False)
    assert (done.stdout, done.stderr) == ("[1,2]\n", "")


def test_jaxsrl_command_runs_next_to_a_file_that_shadows(shadowed):
    done = subprocess.run(jaxsrl_command("train", "--list"), capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    assert "ppo_cartpole" in done.stdout


def test_pool_starts_next_to_a_file_that_shadows(shadowed):
    done = subprocess.run(python_command(POOL), capture_output=True, text=True, timeout=150, check=False)
    assert done.stdout == "(2, 4)\n", done.stderr


def test_python_command_finds_the_package_of_a_checkout(tmp_path):
    interpreter, *rest = python_command("print(sys.path[-1])")
    command = [interpreter, "-S", *rest]  # -S: without installed packages, this one among them
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=150, check=True)
    assert done.stdout == f"{Path(module.__file__).parents[2]}\n"


def test_commands_of_managers_start_with_that_of_jaxsrl(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(module, "_run", lambda command, deadline, stopped: commands.append(command) or 1)
    module.train_missing([TaskRuns("A-v0", "ppo", "")], tmp_path, tmp_path, 0.0, lambda line: None)
    commands.append(train_task(tmp_path, "run", "ppo", 1, 0, ()).command)
    expected = jaxsrl_command("train", "ppo")
    assert [command[: len(expected)] for command in commands] == [expected] * len(commands)
    assert len(commands) > 1
    assert expected[:2] == [sys.executable, "-P"]
