"""The Dockerfile: known instructions, shell that parses, paths that exist in its context, and extras and commands that exist."""

import fnmatch
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "deploy" / "docker"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
KNOWN = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "FROM", "RUN", "USER", "WORKDIR"}


def instructions():
    """Pairs of instruction and arguments, with continued lines joined."""
    lines = [line for line in (FOLDER / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line]


def arguments_of(name):
    return [arguments for instruction, arguments in instructions() if instruction == name]


def is_ignored(path):
    """Whether Docker leaves a path out of the build context: the last pattern that matches it or a parent decides."""
    ignored = False
    for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        whole = not line.startswith("**/")
        parts = [str(parent) for parent in (path, *path.parents)] if whole else list(path.parts)
        if pattern and any(fnmatch.fnmatchcase(part, pattern) for part in parts if part != "."):
            ignored = not line.startswith("!")
    return ignored


def test_docker_file_has_known_instructions():
    assert {name for name, _ in instructions()} == KNOWN
    assert arguments_of("FROM") == ["python:${PYTHON}-slim AS build", "python:${PYTHON}-slim"]


@pytest.mark.parametrize("command", arguments_of("RUN"), ids=lambda command: command.split()[0])
def test_docker_file_shell_commands_parse(command):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    done = subprocess.run([bash, "-n", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_docker_file_copies_paths_of_its_context():
    for arguments in arguments_of("COPY"):
        words = [word for word in shlex.split(arguments) if not word.startswith("--")]
        if "--from=build" not in arguments:
            assert all((ROOT / source).exists() and not is_ignored(Path(source)) for source in words[:-1])


def test_docker_context_holds_what_the_wheels_need():
    read = (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        ".gitignore",
        "envpool_bridge/pyproject.toml",
        "jaxsrl/web/static/main.js",
    )
    assert [path for path in read if is_ignored(Path(path))] == []
    assert all(
        is_ignored(Path(path)) for path in (".venv/bin/python", ".git/HEAD", "runs/a", "agents/__pycache__/x.pyc")
    )


def test_docker_file_installs_known_extras():
    text = (FOLDER / "Dockerfile").read_text() + (ROOT / "docs" / "operations" / "docker.md").read_text()
    extras = {extra for names in re.findall(r"EXTRAS=([\w,]+)", text) for extra in names.split(",")}
    assert {"cuda", "mujoco", "video"} <= extras <= set(PROJECT["optional-dependencies"])


def test_docker_file_runs_the_command_of_the_project():
    assert json.loads(arguments_of("ENTRYPOINT")[0])[0] in PROJECT["scripts"]
    assert json.loads(arguments_of("CMD")[0]) == ["doctor"]


def test_docker_file_installs_what_mujoco_draws_with():
    packages = next(re.findall(r"lib\S+", command) for command in arguments_of("RUN") if "apt-get" in command)
    assert "MUJOCO_GL=egl" in arguments_of("ENV")[0]
    assert {"libegl1", "libopengl0", "libgl1-mesa-dri"} <= set(
        packages
    )  # found missing by a build: `import mujoco` failed
