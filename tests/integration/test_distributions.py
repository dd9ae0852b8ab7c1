"""The distributions that users install: built from source, installed in new environments, and used in an empty directory."""

import json
import os
import re
import signal
import subprocess
import sysconfig
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 600
SHORT = ("--run.total-env-steps", "8192", "--eval.final-episodes", "2")
USE_POOL = """
import sys
from functools import partial
import gymnasium
import numpy as np
from envpool_bridge.vector_env import PoolVectorEnv
envs = PoolVectorEnv(partial(gymnasium.make, "CartPole-v1"), num_envs=4, num_workers=2)
observations, _ = envs.reset(seed=0)
assert observations.shape == (4, 4)
assert envs.step(np.zeros(4, np.int64))[1].tolist() == [1.0] * 4
envs.close()
assert not {"jax", "flax", "agents", "jaxsrl"} & set(sys.modules)
"""


def run(*command, directory, **settings):
    """Output of a command that sees neither the checkout nor the environment of the tests."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PIP_REQUIRE_VIRTUALENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        **settings,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def new_environment(directory):
    """Commands of a new virtual environment."""
    venv.create(directory, with_pip=True)
    return directory / "bin"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Wheels of both distributions, each built from its source distribution."""
    directory = tmp_path_factory.mktemp("distributions")
    commands = new_environment(directory / "builder")
    run(commands / "pip", "install", "-q", "build", directory=directory)
    for project in (ROOT / "envpool_bridge", ROOT):
        run(commands / "python", "-m", "build", "--outdir", directory / "dist", project, directory=directory)
    found = sorted((directory / "dist").glob("*.whl"))
    assert [path.name.partition("-")[0] for path in found] == ["envpool_bridge", "jaxsrl"]
    return found


@pytest.mark.slow
def test_wheels_hold_every_tracked_file_once(wheels):
    names = [name for wheel in wheels for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    packages = ("agents/", "envpool_bridge/", "experiments/", "jaxsrl/")
    project_files = {f"envpool_bridge/{name}" for name in ("LICENSE", "README.md", "pyproject.toml")}
    tracked = {name for name in listed.split("\0") if name.startswith(packages) and (ROOT / name).is_file()}
    assert tracked - project_files <= set(names)
    assert len(names) == len(set(names))
    assert all(name.startswith(packages) for name in names)
    assert not project_files & set(names)


@pytest.mark.slow
def test_pool_wheel_works_without_jax(wheels, tmp_path):
    commands = new_environment(tmp_path / "environment")
    run(commands / "pip", "install", "-q", wheels[0], directory=tmp_path)
    run(commands / "python", "-c", "import importlib.util as u; assert not u.find_spec('jax')", directory=tmp_path)
    run(commands / "python", "-c", USE_POOL, directory=tmp_path)


@pytest.fixture(scope="module")
def installed(wheels, tmp_path_factory):
    """Commands of an environment with both wheels. Other packages are those of the tests, which takes minutes less.

    A directory that a .pth file names is searched last, and its own .pth files are not read: the checkout stays hidden.
    """
    directory = tmp_path_factory.mktemp("installed")
    commands = new_environment(directory / "environment")
    run(commands / "pip", "install", "-q", "--no-deps", *wheels, directory=directory)
    packages = next((directory / "environment" / "lib").glob("python*/site-packages"))
    (packages / "packages_of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return commands


@pytest.mark.slow
def test_installed_commands_work_in_an_empty_directory(installed, tmp_path):
    where = run(installed / "python", "-c", "import agents, envpool_bridge, jaxsrl as j; print(j)", directory=tmp_path)
    assert str(installed.parent) in where
    jaxsrl = installed / "jaxsrl"
    assert "ppo_cartpole" in run(jaxsrl, "train", "--list", directory=tmp_path)
    run(jaxsrl, "train", "ppo_cartpole", *SHORT, directory=tmp_path)
    run(jaxsrl, "new", "my_experiment", directory=tmp_path)
    run(jaxsrl, "train", "my_experiment", *SHORT, "--run.name", "mine", directory=tmp_path)
    names = {path.name for path in (tmp_path / "runs").iterdir()}
    assert "mine" in names
    assert any(name.startswith("ppo_cartpole_") for name in names)
    run(jaxsrl, "plot", "runs", "--out", "curves.png", directory=tmp_path)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    report = run(jaxsrl, "evaluate", "runs/mine", "--episodes", "2", "--json", directory=tmp_path)
    assert json.loads(report)["episodes"] == 2


@pytest.mark.slow
def test_installed_view_serves_its_page(installed, tmp_path):
    run(installed / "jaxsrl", "train", "ppo_cartpole", *SHORT, directory=tmp_path)
    command = [str(installed / "jaxsrl"), "view", "runs", "--no-browser"]
    server = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        address = re.search(r"http://\S+", server.stdout.readline())[0]
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert b"<html" in answer.read()
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
