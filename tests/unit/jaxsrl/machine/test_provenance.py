"""Provenance of a run: the command without this machine's paths, and the commit of a checkout."""

import json
import os
import subprocess

import jax
import pytest

import jaxsrl
from jaxsrl.machine.provenance import describe_commit, format_command, read_provenance


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["/home/me/experiments/ppo.py", "--env.id", "Hopper-v5"], "jaxsrl train ppo --env.id Hopper-v5"),
        (["experiments/ppo.py", "--run.directory", "/a", "--run.seed", "1"], "jaxsrl train ppo --run.seed 1"),
        (["experiments/ppo.py", "--run.seed=1", "--run.name=b", "--run.directory=/c"], "jaxsrl train ppo --run.seed=1"),
        (["experiments/ppo.py", "--run.name"], "jaxsrl train ppo"),
        (["experiments/ppo.py", "--env.id", "a b"], "jaxsrl train ppo --env.id 'a b'"),
        (["/home/me/script.py", "--env.id", "Hopper-v5"], ""),
        (["-c"], ""),
        ([""], ""),
    ],
)
def test_format_command_keeps_no_directory(arguments, command):
    assert format_command(arguments) == command


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
