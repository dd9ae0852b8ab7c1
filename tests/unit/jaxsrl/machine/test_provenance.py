"""Provenance of a run: the command that makes it again, and the commit of a checkout."""

import json
import os
import shlex
import subprocess
import sys
import types
from pathlib import Path

import jax
import pytest

import jaxsrl
from jaxsrl.cli import same_experiment
from jaxsrl.machine.provenance import describe_commit, experiment_command, read_command, read_provenance

ROOT = Path(jaxsrl.__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ([str(ROOT / "experiments/ppo.py"), "--run.name", "a"], "jaxsrl train ppo --run.name a"),
        (["experiments/mine.py", "--run.directory", "/a b"], "jaxsrl train mine --run.directory '/a b'"),
        ([same_experiment.__file__, "--config", "a.yaml"], "jaxsrl train --config a.yaml"),
        (["my script.py", "--env.id", "Hopper-v5"], "python 'my script.py' --env.id Hopper-v5"),
    ],
)
def test_read_command_starts_the_program_again(monkeypatch, arguments, command):
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", arguments)
    assert read_command() == ""  # a notebook's program is another
    main.__file__ = arguments[0]
    assert read_command() == command


@pytest.mark.parametrize("program", ["-c", "-m"])
def test_read_command_of_a_text_and_of_a_module(tmp_path, program):
    """The command, run again, prints itself."""
    (tmp_path / "mine").mkdir()
    text = "from jaxsrl.machine.provenance import read_command; print(read_command(), end='')"
    (tmp_path / "mine/__main__.py").write_text(text)
    first = [sys.executable, program, text if program == "-c" else "mine", "--a", "b c"]
    options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "capture_output": True, "text": True}
    command = subprocess.run(first, check=True, **options).stdout
    assert command.startswith(f"python {program} ")
    again = [sys.executable, *shlex.split(command)[1:]]
    assert subprocess.run(again, check=True, **options).stdout == command


def test_experiment_command_is_that_of_a_name_or_a_file():
    assert experiment_command(str(ROOT / "experiments/ppo.py")) == "jaxsrl train ppo"
    assert experiment_command("mine/my ppo.py") == "jaxsrl train 'mine/my ppo.py'"
    assert (
        experiment_command("/place/experiments/mine.py") == "jaxsrl train /place/experiments/mine.py"
    )  # by path alone


def git(place, *arguments):
    identity = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    environment = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": os.devnull}
    return subprocess.run(["git", *arguments], cwd=place, env=environment, check=True, capture_output=True, text=True)


def test_describe_commit_marks_changed_files(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-qm", "one")
    commit = git(tmp_path, "rev-parse", "HEAD").stdout.strip()
    described = describe_commit(tmp_path)
    assert len(described) >= 7
    assert commit.startswith(described)
    (tmp_path / "a").write_text("2")
    assert describe_commit(tmp_path) == f"{described}-dirty"


def test_describe_commit_is_empty_outside_a_checkout(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "site-packages").mkdir()  # an installation inside a user's own checkout
    assert describe_commit(tmp_path / "site-packages") == ""
    assert describe_commit(tmp_path) == ""  # without a commit


def test_read_provenance_names_versions_and_hardware():
    provenance = read_provenance()
    assert provenance["versions"]["jax"] == jax.__version__
    assert provenance["versions"]["jaxsrl"] == jaxsrl.__version__
    assert provenance["hardware"]["cores"] == len(os.sched_getaffinity(0))
    assert provenance["hardware"]["cpu"]
    assert json.loads(json.dumps(provenance)) == provenance
