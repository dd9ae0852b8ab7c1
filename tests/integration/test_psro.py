"""`jaxsrl psro`: commands of the runs, kills at every decision, and policies of real runs in Kuhn poker."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from envpool_bridge.errors import UserError
from jaxsrl.cli.commands.league import make_play
from jaxsrl.cli.main import main
from jaxsrl.experiment import load_experiment
from jaxsrl.tune import psro as module
from jaxsrl.tune.managed_runs import hold
from jaxsrl.tune.psro import PSRO, STATE, PSROConfig

CONFIG = PSROConfig("ppo.py", iterations=6, env_steps=100, games=10)
BEATS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])  # rock, paper, scissors


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
    """Trains in no time: each policy is the best of rock, paper and scissors against the mixture; the first is rock."""
    for task in tasks:
        flags, choice = options(task), 0
        directory = Path(*flags["--run.directory"])
        if members := flags.get("--policies.self-play.members"):
            chosen = [int((Path(member) / "choice").read_text()) for member in members]
            weights = [float(weight) for weight in flags["--policies.self-play.mixture"]]
            choice = int(np.argmax(sum(w * BEATS[:, c] for w, c in zip(weights, chosen, strict=True))))
        (directory / task.name).mkdir(exist_ok=True)
        (directory / task.name / "choice").write_text(str(choice))
    return 0


def play(runs, games, seed):
    *others, newest = [int((run / "choice").read_text()) for run in runs]
    return [float(BEATS[newest, other]) for other in others]


def psro(directory, config=CONFIG, train=train, play=play):
    return PSRO(directory, config, play, lambda line: None, train)


def test_rock_paper_scissors_ends_with_a_third_each(tmp_path):
    own = psro(tmp_path)
    assert own.run() == 0
    mixture, share = own.state["mixtures"][-1], np.zeros(3)
    for run, weight in zip(own.runs(), mixture, strict=True):
        share[int((run / "choice").read_text())] += weight
    np.testing.assert_allclose(share, 1 / 3, atol=1e-6)
    np.testing.assert_array_equal(own.payoffs, -own.payoffs.T)


def test_a_policy_is_trained_against_the_newest_mixture(tmp_path):
    tasks = []

    def note(new):
        tasks.extend(new)
        return train(new)

    own = psro(tmp_path, train=note)
    assert own.run() == 0
    assert [task.name for task in tasks] == [f"policy{number:03d}" for number in range(6)]
    assert "--policies.self-play.slots" not in options(tasks[0])
    for number, task in enumerate(tasks[1:], 1):
        flags = options(task)
        assert flags["--policies.self-play.members"] == [str(tmp_path / f"policy{m:03d}") for m in range(number)]
        weights = [float(weight) for weight in flags["--policies.self-play.mixture"]]
        assert weights == own.state["mixtures"][number - 1]
        assert flags["--run.seed"] == [str(number)]


def test_psro_killed_at_any_decision_gives_the_same_state(tmp_path, monkeypatch):
    whole = psro(tmp_path / "whole")
    whole.run()
    for after in range(5 * CONFIG.iterations):
        directory, calls = tmp_path / f"killed{after}", 0

        def decide(work, after=after):
            def killable(*arguments):
                nonlocal calls
                calls += 1
                if calls - 1 == after:
                    raise KilledError
                return work(*arguments)

            return killable

        with monkeypatch.context() as patched:
            patched.setattr(module, "write_json", decide(module.write_json))
            try:
                psro(directory, train=decide(train), play=decide(play)).run()
                survived = True
            except KilledError:
                survived = False
        again = psro(directory)
        assert again.run() == 0
        assert again.state == whole.state
        if survived:
            return
    pytest.fail("every call was killed")


def test_bad_settings_and_other_ones_are_rejected(tmp_path):
    psro(tmp_path, dataclasses.replace(CONFIG, iterations=2)).run()
    assert len(psro(tmp_path).runs()) == 2
    with pytest.raises(UserError, match=r"other settings \(games\)"):
        psro(tmp_path, dataclasses.replace(CONFIG, games=20))
    for changes, message in [
        ({"games": 3}, "expected an even number, got 3"),
        ({"iterations": 0}, "at least one iteration"),
        ({"solver": "luck"}, "solver must be one of nash, uniform"),
    ]:
        with pytest.raises(UserError, match=message):
            dataclasses.replace(CONFIG, **changes)
    assert psro(tmp_path / "stopped", train=lambda tasks: 130).run() == 130


def test_too_few_environments_are_rejected_before_any_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    game = ("--env.suite", "jax", "--env.id", "RockPaperScissors-v1", "--plan", "device_only")
    with pytest.raises(SystemExit) as ended:
        main(["psro", "ppo", *game, "--run.num-envs", "14"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "later runs play 4 opponents at a time (--slots)" in said
    assert "expected 8 environments without self-play, got 7 of 7" in said
    assert "--run.num-envs 16 at least" in said
    assert not list(tmp_path.iterdir())


MADE_IN_CODE = """
import dataclasses
from agents.ppo import make_ppo
from experiments.ppo_cartpole import EXPERIMENT

EXPERIMENT = dataclasses.replace(EXPERIMENT, make_agent=make_ppo)
"""


@pytest.mark.parametrize(
    ("experiment", "flags", "message"),
    [
        ("made_in_code.py", [], "an algorithm of jaxsrl"),
        ("ppo", ["--run.seeds", "2"], "expected --run.seeds 1, got 2"),
        ("ppo", ["--run.record", "steps"], "is of one run, not of each policy: expected none, got steps"),
        ("ppo", ["--run.seed", "1", "--iterations", "1"], "which this command sets for each run: use --seed"),
        ("ppo", ["--policies.self-play.members", "a"], "expected no --policies.self-play.members"),
        ("ppo", ["--policies.self-play.library_size=3"], "expected no --policies.self-play.library-size"),
    ],
)
def test_runs_that_cannot_be_loaded_for_games_are_rejected(tmp_path, monkeypatch, capsys, experiment, flags, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made_in_code.py").write_text(MADE_IN_CODE)
    with pytest.raises(SystemExit) as ended:
        main(["psro", experiment, *flags])
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists()


def test_a_second_psro_in_a_directory_is_rejected(tmp_path, capsys):
    with hold(tmp_path / "own"), pytest.raises(SystemExit) as ended:
        main(["psro", "ppo", "--iterations", "1", "--directory", str(tmp_path / "own")])
    assert ended.value.code == 2
    assert "own is in use by process" in " ".join(capsys.readouterr().err.split())


ROCK_PAPER_SCISSORS = """
from pettingzoo.classic.rps.rps import parallel_env as rock_paper_scissors


def make():
    return rock_paper_scissors(max_cycles=3)


parallel_env = make
"""


@pytest.mark.slow
@pytest.mark.parametrize("env", ["function", "module"])
def test_games_are_played_in_environments_of_ones_own(tmp_path, monkeypatch, env):
    pytest.importorskip("pettingzoo")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_game.py").write_text(ROCK_PAPER_SCISSORS)
    value = "make" if env == "function" else 'EnvConfig("own_game", suite="pettingzoo")'
    (tmp_path / "experiment.py").write_text(
        "from agents.a2c import A2CConfig\nfrom jaxsrl import EnvConfig\nfrom jaxsrl.experiment import Experiment\n"
        f"from own_game import make\n\nEXPERIMENT = Experiment({value}, A2CConfig())\n"
    )
    flags = ["--plan", "serial", "--run.num-envs", "8", "--eval.final-episodes", "0", "--network.hidden-sizes", "8"]
    runs = [tmp_path / name for name in ("one", "other")]
    for seed, run in enumerate(runs):
        own = ["--run.total-env-steps", "64", "--run.rollout-length", "8", "--run.name", run.name]
        load_experiment(Path("experiment.py"), [*flags, *own, "--run.directory", ".", "--run.seed", str(seed)]).train(
            quiet=True
        )
    points, returns = make_play(Path("experiment.py"), flags)(runs, [(1, 0)], 4, 0)
    assert points[0, 1] + points[1, 0] == 1.0
    assert returns[0, 1] == -returns[1, 0]


@pytest.mark.slow
def test_the_command_trains_policies_of_kuhn_poker(tmp_path):
    pytest.importorskip("pgx")
    command = [sys.executable, "-m", "jaxsrl.cli.main", "psro", "ppo", "--iterations", "2", "--env-steps", "4096"]
    command += ["--games", "64", "--json", "--env.suite", "pgx", "--env.id", "kuhn_poker", "--plan", "device_only"]
    command += ["--env.kwargs.two_agents", "true", "--eval.final-episodes", "0"]
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    results = [
        subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900) for _ in range(2)
    ]
    assert [result.returncode for result in results] == [0, 0], results[0].stderr
    first, second = (json.loads(result.stdout.splitlines()[-1])["policies"] for result in results)
    assert first == second
    assert sum(policy["weight"] for policy in first) == pytest.approx(1.0)
    state = json.loads((tmp_path / "runs" / "psro_ppo" / STATE).read_text())
    assert len(state["payoffs"]) == 2
