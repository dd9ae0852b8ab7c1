"""`jaxsrl league`: commands of the runs by role, kills at every decision, fictitious co-play, and real runs of Kuhn poker."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from envpool_bridge.errors import UserError
from jaxsrl.cli.main import main
from jaxsrl.population.ratings import win_probability
from jaxsrl.tune import league as module
from jaxsrl.tune.league import STATE, League, LeagueConfig
from jaxsrl.tune.managed_runs import hold

CONFIG = LeagueConfig("ppo.py", rounds=7, env_steps=100, games=10)


class KilledError(Exception):
    """Stands for the end of the process."""


def options(task):
    """Returns the values of each flag of a command."""
    found, name = {}, ""
    for word in task.command:
        if word.startswith("--"):
            name = word
            found[name] = []
        elif name:
            found[name].append(word)
    return found


def train(tasks):
    """Trains in no time: a policy's strength is that of its source, plus one for each hundred steps and opponent."""
    for task in tasks:
        flags = options(task)
        directory = Path(*flags["--run.directory"])
        source = flags.get("--run.init-from")
        start = float((Path(*source) / "strength").read_text()) if source else 0.0
        met = len(flags.get("--policies.self-play.members", []))
        (directory / task.name).mkdir(exist_ok=True)
        (directory / task.name / "strength").write_text(str(start + int(*flags["--run.total-env-steps"]) + 10.0 * met))
    return 0


def play(runs, pairs, games, seed):
    strength = np.array([float((run / "strength").read_text()) for run in runs])
    points = np.round(games * win_probability(strength[:, None], strength[None])) / games
    assert all(new > other for new, other in pairs)
    return points, points - points.T


def league(directory, config=CONFIG, train=train, play=play):
    return League(directory, config, play, lambda line: None, train)


def test_players_train_by_their_roles(tmp_path):
    tasks = []

    def note(new):
        tasks.extend(new)
        return train(new)

    own = league(tmp_path, train=note)
    assert own.run() == 0
    policies = own.state["policies"]
    assert [task.name for task in tasks] == [policy["name"] for policy in policies]
    assert [policy["role"] for policy in policies[:4]] == [
        "main_agent",
        "main_agent",
        "main_exploiter",
        "league_exploiter",
    ]
    for place, (task, policy) in enumerate(zip(tasks, policies, strict=True)):
        flags = options(task)
        assert flags["--run.seed"] == [str(place)]
        assert flags.get("--run.init-from", [None])[0] == (policy["source"] and str(tmp_path / policy["source"]))
        earlier = [other for other in policies if other["round"] < policy["round"]]
        if not earlier:
            assert "--policies.self-play.slots" not in flags
            continue
        members = [Path(member).name for member in flags["--policies.self-play.members"]]
        assert set(members) <= {other["name"] for other in earlier}
        assert flags["--policies.self-play.self-share"] == [str(policy["self_share"])]
        weights = [float(weight) for weight in flags["--policies.self-play.mixture"]]
        assert dict(zip(members, weights, strict=True)) == policy["opponents"]
        assert sum(weights) == pytest.approx(1.0)
        if policy["role"] == "main_exploiter":
            assert {other["role"] for other in earlier if other["name"] in members} == {"main_agent"}
        if policy["source"] is not None:
            assert policy["source"].partition("_")[2] == policy["player"]
    np.testing.assert_allclose(own.points + own.points.T, 1.0)
    started = [policy["source"] is None for policy in policies if policy["role"] == "main_exploiter"]
    assert started[0]
    assert 2 <= sum(started) < len(started)


@pytest.mark.parametrize("rule", ["league", "fcp"])
def test_a_league_killed_at_any_decision_ends_the_same(tmp_path, monkeypatch, rule):
    config = dataclasses.replace(CONFIG, rule=rule, rounds=4)
    whole = league(tmp_path / "whole", config)
    whole.run()
    for after in range(100):
        directory, calls = tmp_path / f"killed{after}", 0

        def decide(work, after=after):
            def killable(*arguments):
                nonlocal calls
                calls += 1
                if calls - 1 == after:
                    raise KilledError
                return work(*arguments)

            return killable

        def train_one_by_one(tasks, decide=decide):
            for task in tasks:
                decide(train)([task])
            return 0

        with monkeypatch.context() as patched:
            patched.setattr(module, "write_json", decide(module.write_json))
            try:
                league(directory, config, train_one_by_one, decide(play)).run()
                survived = True
            except KilledError:
                survived = False
        again = league(directory, config)
        assert again.run() == 0
        assert again.state == whole.state
        if survived:
            assert after >= 3 * config.rounds - 1
            return
    pytest.fail("every call was killed")


def test_fictitious_co_play_ends_with_a_best_response(tmp_path):
    tasks = []

    def note(new):
        tasks.append(new)
        return train(new)

    config = dataclasses.replace(CONFIG, rule="fcp", main_agents=2, rounds=4)
    own = league(tmp_path, config, train=note)
    assert own.run() == 0
    assert [len(new) for new in tasks] == [2, 2, 2, 1]
    assert not any("--policies.self-play.slots" in options(task) for new in tasks[:3] for task in new)
    assert [own.state["policies"][place]["source"] for place in (0, 2, 5)] == [
        None,
        "round000_main_agent0",
        "round001_main_agent1",
    ]
    response = options(tasks[3][0])
    assert response["--policies.self-play.members"] == [str(tmp_path / task.name) for new in tasks[:3] for task in new]
    assert [float(weight) for weight in response["--policies.self-play.mixture"]] == pytest.approx([1 / 6] * 6)
    assert response["--policies.self-play.self-share"] == ["0.0"]
    assert response["--run.total-env-steps"] == ["300"]
    assert "--run.init-from" not in response
    with pytest.raises(UserError, match=r"other settings \(rounds\)"):
        league(tmp_path, dataclasses.replace(config, rounds=5))


def test_bad_settings_and_other_ones_are_rejected(tmp_path):
    league(tmp_path, dataclasses.replace(CONFIG, rounds=2)).run()
    more = league(tmp_path)
    more.run()
    assert more.state["rounds"] == 7
    with pytest.raises(UserError, match=r"other settings \(games\)"):
        league(tmp_path, dataclasses.replace(CONFIG, games=20))
    for changes, message in [
        ({"games": 3}, "expected an even number, got 3"),
        ({"main_agents": 0}, "at least one round, env step, main agent"),
        ({"league_exploiters": -1}, "not negative"),
        ({"rule": "fcp", "rounds": 1}, "fcp with at least two rounds: got 'fcp' with 1 rounds"),
    ]:
        with pytest.raises(UserError, match=message):
            dataclasses.replace(CONFIG, **changes)
    assert league(tmp_path / "stopped", train=lambda tasks: 130).run() == 130


@pytest.mark.parametrize(("rule", "num_envs", "least"), [("league", "28", "30"), ("fcp", "14", "16")])
def test_too_few_environments_are_rejected_before_any_run(tmp_path, monkeypatch, capsys, rule, num_envs, least):
    monkeypatch.chdir(tmp_path)
    game = ("--env.suite", "jax", "--env.id", "RockPaperScissors-v1", "--plan", "device_only")
    with pytest.raises(SystemExit) as ended:
        main(["league", "ppo", *game, "--rule", rule, "--run.num-envs", num_envs])
    assert ended.value.code == 2
    assert f"--run.num-envs {least} at least" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--rounds", "1", "--run.name", "mine"],
            "expected no --run.name, which this command sets for each run: use --directory",
        ),
        (
            ["--run.init-from", "runs/ppo"],
            "expected no --run.init-from, which this command sets for each run: remove it",
        ),
        (["--policies.self-play.slots", "2"], "expected no --policies.self-play.slots"),
        (["--run.record", "steps"], "is of one run, not of each policy: expected none, got steps"),
    ],
)
def test_options_that_the_league_sets_are_rejected(tmp_path, monkeypatch, capsys, flags, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["league", "ppo", *flags])
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_a_second_league_in_a_directory_is_rejected(tmp_path, capsys):
    with hold(tmp_path / "own"), pytest.raises(SystemExit) as ended:
        main(["league", "ppo", "--rounds", "1", "--directory", str(tmp_path / "own")])
    assert ended.value.code == 2
    assert "own is in use by process" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["league", "fcp"])
def test_the_command_trains_a_league_of_kuhn_poker(tmp_path, rule):
    pytest.importorskip("pgx")
    command = [sys.executable, "-m", "jaxsrl.cli.main", "league", "ppo", "--rule", rule, "--rounds", "2", "--json"]
    command += ["--env-steps", "4096", "--games", "64", "--env.suite", "pgx", "--env.id", "kuhn_poker"]
    command += ["--env.kwargs.two_agents", "true", "--plan", "device_only", "--eval.final-episodes", "0"]
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    results = [
        subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900) for _ in range(2)
    ]
    assert [result.returncode for result in results] == [0, 0], results[0].stderr
    first, second = (json.loads(result.stdout.splitlines()[-1])["policies"] for result in results)
    assert first == second
    state = json.loads((tmp_path / "runs" / "league_ppo" / STATE).read_text())
    assert len(first) == len(state["policies"]) == {"league": 4, "fcp": 2}[rule]
