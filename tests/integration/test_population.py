"""`jaxsrl population`: state and commands of the rounds, kills at every decision, and a population of real runs."""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envpool_bridge.errors import UserError
from envpool_bridge.limits import count_cores
from jaxsrl.cli.main import main
from jaxsrl.machine.run_tasks import Task, run_tasks
from jaxsrl.tune import population as module
from jaxsrl.tune.managed_runs import hold
from jaxsrl.tune.pbt import PBTConfig
from jaxsrl.tune.population import SCORE, STATE, Population, PopulationConfig

SPACE = {"agent.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}}
CONFIG = PopulationConfig("ppo_cartpole.py", SPACE, members=4, rounds=4, env_steps=100, rule=PBTConfig(share=0.25))


class KilledError(Exception):
    """Stands for the end of the process."""


def train(tasks):
    """Trains in no time: a member's score is that of its source, plus one for a learning rate near 1e-2."""
    for task in tasks:
        options = dict(itertools.pairwise(task.command))
        directory = Path(options["--run.directory"])
        rate = json.loads(Path(options["--config"]).read_text())["agent"]["learning_rate"]
        source = options.get("--run.init-from")
        before = json.loads((Path(source) / SCORE).read_text())["mean_return"] if source else 0.0
        run = directory / task.name
        (run / "checkpoints" / "10").mkdir(parents=True, exist_ok=True)
        score = before + (1.0 if 5e-3 < rate < 2e-2 else rate)
        (run / SCORE).write_text(json.dumps({"update": 10, "mean_return": score}))
    return 0


def population(directory, config=CONFIG, train=train):
    return Population(directory, config, lambda line: None, train)


def test_members_continue_their_own_run_or_a_copy(tmp_path):
    commands = []

    def note(tasks):
        commands.append([list(task.command) for task in tasks])
        return train(tasks)

    assert population(tmp_path, train=note).run() == 0
    state = json.loads((tmp_path / STATE).read_text())
    assert [len(round_commands) for round_commands in commands] == [4, 4, 4, 4]
    assert not any("--run.init-from" in command for command in commands[0])
    copies = 0
    for number in (1, 2, 3):
        for member, (command, entry) in enumerate(zip(commands[number], state["history"][number], strict=True)):
            source = command[command.index("--run.init-from") + 1]
            assert source == str(tmp_path / f"round{number - 1:03d}_member{entry['source']:02d}")
            assert "--run.init-optimizer" in command
            copies += entry["source"] != member
    assert copies == 3


def runs_with_checkpoints(directory):
    return sorted(path.parent.name for path in directory.glob("*/checkpoints"))


def test_a_population_killed_at_any_moment_ends_the_same(tmp_path, monkeypatch):
    population(tmp_path / "whole").run()
    expected = (tmp_path / "whole" / STATE).read_text()
    write = module.write_json
    for moment in range(30):
        directory, left = tmp_path / f"killed{moment}", [moment]

        def dies(step, left=left):
            if left[0] == 0:
                raise KilledError
            left[0] -= 1
            return step()

        def train_one_by_one(tasks, dies=dies):
            for task in tasks:
                dies(lambda task=task: train([task]))
            return 0

        monkeypatch.setattr(module, "write_json", lambda path, data, dies=dies: dies(lambda: write(path, data)))
        try:
            population(directory, train=train_one_by_one).run()
            survived = True
        except KilledError:
            survived = False
        monkeypatch.setattr(module, "write_json", write)
        assert population(directory).run() == 0
        assert runs_with_checkpoints(directory) == [f"round003_member{member:02d}" for member in range(4)]
        assert (directory / STATE).read_text() == expected.replace(str(tmp_path / "whole"), str(directory))
    assert not survived


def test_more_rounds_continue_and_other_settings_are_rejected(tmp_path):
    population(tmp_path, dataclasses.replace(CONFIG, rounds=2)).run()
    population(tmp_path).run()
    assert len(json.loads((tmp_path / STATE).read_text())["history"]) == 4
    with pytest.raises(UserError, match=r"other settings \(env_steps\)"):
        population(tmp_path, dataclasses.replace(CONFIG, env_steps=50))
    with pytest.raises(UserError, match="at least two members"):
        dataclasses.replace(CONFIG, members=1)


def test_a_score_of_an_unfinished_run_does_not_count(tmp_path):
    population(tmp_path / "whole").run()
    unfinished = tmp_path / "evaluated" / "round000_member02"
    unfinished.mkdir(parents=True)
    (unfinished / SCORE).write_text('{"mean_return": 1000.0}')  # of `jaxsrl evaluate` while it trains
    population(tmp_path / "evaluated").run()
    histories = [json.loads((tmp_path / name / STATE).read_text())["history"] for name in ("whole", "evaluated")]
    assert histories[0] == histories[1]


@pytest.mark.parametrize("rounds", [4, 5])
def test_checkpoints_left_by_a_kill_are_removed(tmp_path, rounds):
    population(tmp_path).run()
    for number in range(3):
        (tmp_path / f"round{number:03d}_member01" / "checkpoints" / "10").mkdir(parents=True)
    population(tmp_path, dataclasses.replace(CONFIG, rounds=rounds)).run()
    assert runs_with_checkpoints(tmp_path) == [f"round{rounds - 1:03d}_member{member:02d}" for member in range(4)]


@pytest.mark.parametrize("evaluated", [{}, {"update": 5}])
def test_a_score_of_an_earlier_update_is_rejected(tmp_path, evaluated):
    def evaluate_late(tasks):
        train(tasks)
        (tmp_path / "round000_member02" / SCORE).write_text(json.dumps({"mean_return": 1000.0, **evaluated}))
        return 0

    with pytest.raises(UserError, match=r"member02/eval.json is of update .*: expected the last one, 10; run `jaxsrl"):
        population(tmp_path, train=evaluate_late).run()
    assert json.loads((tmp_path / STATE).read_text())["history"] == []
    assert population(tmp_path).run() == 0


def test_every_run_has_its_own_seed(tmp_path):
    seeds = []

    def note(tasks):
        seeds.extend(dict(itertools.pairwise(task.command))["--run.seed"] for task in tasks)
        return train(tasks)

    population(tmp_path, dataclasses.replace(CONFIG, seed=7), train=note).run()
    assert seeds == [str(seed) for seed in range(7, 7 + 16)]


def test_a_stopped_round_returns_its_status(tmp_path):
    assert population(tmp_path, train=lambda tasks: 130).run() == 130
    assert population(tmp_path).run() == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--agent.learning-rate", "1e-3"], "--agent.learning-rate would replace the values of all members"),
        (["--config", "options.toml"], "members read their values by --config"),
        (["--run.seeds", "2"], "expected --run.seeds 1, got 2"),
        (["--run.record", "steps"], "is of one run, not of each member: expected none, got steps"),
        (
            ["--run.total-env-steps", "9"],
            "expected no --run.total-env-steps, which this command sets for each run: use --env-steps",
        ),
        (["--run.seed=9"], "expected no --run.seed, which this command sets for each run: use --seed"),
        (["--run.init-from", "runs/ppo"], "expected no --run.init-from"),
        (["--space", "seeds.toml"], "expected no --run.seed, which this command sets for each run: use --seed"),
        (["--eval.final-episodes", "0"], "expected --eval.final-episodes of at least 1, got 0"),
    ],
)
def test_runs_that_cannot_be_members_are_rejected(tmp_path, monkeypatch, capsys, flags, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.toml").write_text('"agent.learning_rate" = {low = 1e-4, high = 1e-1, log = true}\n')
    (tmp_path / "seeds.toml").write_text("run.seed = {low = 1, high = 4}\n")
    (tmp_path / "options.toml").write_text("[run]\nnum_envs = 8\n")
    with pytest.raises(SystemExit) as ended:
        main(["population", "ppo_cartpole", "--space", "space.toml", *flags])
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists()


def test_a_second_population_in_a_directory_is_rejected(tmp_path, capsys):
    (tmp_path / "space.toml").write_text('"agent.learning_rate" = {low = 1e-4, high = 1e-1, log = true}\n')
    with hold(tmp_path / "own"), pytest.raises(SystemExit) as ended:
        main(["population", "ppo_cartpole", "--space", f"{tmp_path}/space.toml", "--directory", f"{tmp_path}/own"])
    assert ended.value.code == 2
    assert "own is in use by process" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "own" / STATE).exists()


@pytest.mark.parametrize("at_once", [0, count_cores() + 1])
def test_runs_at_the_same_time_have_a_core_each(at_once):
    with pytest.raises(UserError, match=rf"\(--at-once\): expected at least 1, .* cores, got {at_once}"):
        run_tasks([Task("run", [sys.executable, "-c", "pass"])], at_once, lambda line: None)


@pytest.mark.slow
def test_the_command_trains_a_population(tmp_path):
    (tmp_path / "space.toml").write_text('"agent.learning_rate" = {low = 1e-4, high = 1e-1, log = true}\n')
    command = [
        sys.executable,
        "-m",
        "jaxsrl.cli.main",
        "population",
        "ppo_cartpole",
        "--space",
        "space.toml",
        "--members",
        "2",
    ]
    command += ["--rounds", "2", "--env-steps", "2048", "--share", "0.5", "--json", "--pool.num-workers", "1"]
    command += ["--eval.final-episodes", "2", "--run.num-envs", "8"]
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    results = [
        subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900) for _ in range(2)
    ]
    assert [result.returncode for result in results] == [0, 0], results[0].stderr
    first, second = (json.loads(result.stdout.splitlines()[-1])["members"] for result in results)
    assert first == second
    assert {member["copied_from"] for member in first} <= {0, 1}
    assert all(member["score"] > 5.0 for member in first)
