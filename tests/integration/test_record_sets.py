"""`jaxsrl record-sets`: levels of skill by hand, and the sets of a short run."""

import dataclasses
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import jaxsrl.cli.main
from envpool_bridge.errors import UserError
from jaxsrl.datasets.dataset import find_damage, open_dataset
from jaxsrl.datasets.writer import leaf_arrays
from jaxsrl.evaluation import standard_sets
from jaxsrl.evaluation.standard_sets import SETS, SetsConfig, choose_levels
from jaxsrl.machine import run_tasks
from jaxsrl.metrics.evaluations import Evaluation, read_evaluations


class Training:
    """Stands for the process of training, with the status of its end; this process receives a signal while it runs."""

    def __init__(self, status, number=0):
        self.status, self.number, self.signals = status, number, []

    def poll(self):
        os.kill(os.getpid(), self.number)
        return self.status

    def send_signal(self, number):
        self.signals.append(number)

    def wait(self, timeout=None):
        return 0

    def kill(self):
        pass


def evaluation(update, mean, mode="greedy"):
    return Evaluation(update, update, update, mode, mean, 0.0, mean, mean, 1.0, 10, 0, 0.0)


def test_expert_is_the_best_and_medium_the_first_past_a_third():
    returns = [20, 45, 50, 110, 45, 80]
    levels = choose_levels([evaluation(number, mean) for number, mean in enumerate(returns)], random_return=20.0)
    assert (levels.expert.update, levels.medium.update) == (3, 2)  # a third: 20 + 90 / 3
    sampled = choose_levels([evaluation(0, 30), evaluation(1, 90, "sample")], random_return=0.0)
    assert sampled.expert.update == 0
    for none in ([], [evaluation(0, 19.0)], [evaluation(0, 90.0, "sample")]):
        with pytest.raises(UserError, match="above the return of random actions, 20.0"):
            choose_levels(none, 20.0)


def test_levels_are_of_the_last_stage_of_a_curriculum():
    stages = [(0, 90.0), (1, 5.0), (1, 15.0), (1, 30.0)]
    evaluations = [
        dataclasses.replace(evaluation(number, mean), stage=stage) for number, (stage, mean) in enumerate(stages)
    ]
    levels = choose_levels(evaluations, random_return=0.0)
    assert (levels.expert.update, levels.medium.update) == (3, 2)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--evaluations 0", "expected at least one version to evaluate: got --evaluations 0"),
        ("--eval.every 100", "expected no --eval.every, which this command sets for each run: use --evaluations"),
        ("--checkpoint.keep-every=9", "expected no --checkpoint.keep-every, which"),
        ("--run.name x", "expected no --run.name, which this command sets for each run: use --out"),
        ("--run.directory x", "expected no --run.directory, which"),
        ("--run.record x", "expected no --run.record, which"),
        ("--eval.mode sample", "expected --eval.mode greedy or both, got sample"),
    ],
)
def test_invalid_flags_are_rejected_before_training(capsys, tmp_path, monkeypatch, flags, message):
    monkeypatch.setattr(run_tasks, "start_here", lambda task: pytest.fail("a run was started"))
    with pytest.raises(SystemExit) as ended:
        jaxsrl.cli.main.main(["record-sets", "dqn_cartpole", "--out", str(tmp_path / "sets"), *flags.split()])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "sets").exists()


def test_the_sets_get_the_environment_of_the_flags(tmp_path, monkeypatch):
    played, commands = [], []

    def start(task):
        commands.append(task.command)
        return Training(0)

    def note(run, out, config, show, env):
        played.append(env)
        return []

    monkeypatch.setattr(run_tasks, "start_here", start)
    monkeypatch.setattr(standard_sets, "make_sets", note)
    jaxsrl.cli.main.main(["record-sets", "dqn_cartpole", "--out", str(tmp_path), "--env.id", "mine:Id-v0"])
    assert [env.id for env in played] == ["mine:Id-v0"]
    assert [command[1] for command in commands] == ["-P"]  # a user's logging.py in the working directory breaks nothing


@pytest.mark.parametrize(
    ("number", "ended", "passed_on", "status"),
    [
        (signal.SIGTERM, None, signal.SIGTERM, 143),
        (signal.SIGUSR1, None, signal.SIGUSR1, 75),
        (0, -signal.SIGKILL, None, 137),
    ],
)
def test_signals_reach_training_and_give_the_status(tmp_path, monkeypatch, number, ended, passed_on, status):
    training = Training(ended, number)
    monkeypatch.setattr(run_tasks, "start_here", lambda task: training)
    monkeypatch.setattr(standard_sets, "make_sets", lambda *args: pytest.fail("training is not complete"))
    with pytest.raises(SystemExit) as end:
        jaxsrl.cli.main.main(["record-sets", "dqn_cartpole", "--out", str(tmp_path)])
    assert end.value.code == status
    assert training.signals == ([passed_on] if passed_on else [])


def test_bad_sizes_are_rejected():
    with pytest.raises(UserError, match="at least one env step"):
        SetsConfig(env_steps=0)


@pytest.mark.slow
def test_the_sets_of_a_run(tmp_path):
    options = (
        "--run.total-env-steps 4096 --run.num-envs 8 --pool.num-workers 1 --agent.replay.min-size 256 --eval.episodes 5"
    )
    command = [
        sys.executable,
        "-m",
        "jaxsrl.cli.main",
        "record-sets",
        "dqn_cartpole",
        "--out",
        "sets",
        "--env-steps",
        "300",
    ]
    command += ["--evaluations", "4", "--json", *options.split()]
    results = [subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300) for _ in range(2)]
    assert [result.returncode for result in results] == [0, 0], results[-1].stderr
    first, second = (json.loads(result.stdout.splitlines()[-1])["sets"] for result in results)
    assert first == second
    assert [row["set"] for row in first] == list(SETS)
    random, _, expert, _, _ = first
    assert random["normalized_score"] == 0.0
    assert expert["env_steps"] >= 300
    sets = {name: open_dataset(tmp_path / "sets" / name) for name in (*SETS, "training")}
    assert not [line for name in sets for line in find_damage(tmp_path / "sets" / name)]
    best = max(each.mean_return for each in read_evaluations(tmp_path / "sets" / "run"))
    assert all(sets[name].manifest.score_expert == best for name in SETS)
    replay, training = (leaf_arrays(sets[name].steps) for name in ("replay", "training"))
    for name in replay:
        np.testing.assert_array_equal(replay[name], training[name][: len(replay[name])])
    assert sets["replay"].manifest.num_steps == sets["medium"].manifest.origin["update"] * 16
