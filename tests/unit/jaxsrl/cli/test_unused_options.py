"""Options that would have no effect, and advice that names options which the command has."""

import os
from pathlib import Path

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.cli.commands.population import TrainPopulation
from jaxsrl.cli.main import main, parse
from jaxsrl.cli.unused_options import validate_passed_on
from jaxsrl.cluster.ray import local_cluster
from jaxsrl.machine import run_tasks


@pytest.fixture(autouse=True)
def nothing_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "execv", lambda *args: pytest.fail("training was started"))
    monkeypatch.setattr(run_tasks, "start_here", lambda task: pytest.fail("training was started"))


def rejection(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("plot --population a --metric loss/total --score best", "recorded: omit --metric loss/total, --score best"),
        ("plot --sweep a --x time --group-by agent plan", "trials: omit --x time, --group-by agent plan"),
        ("plot --sweep a --normalize b.json", "omit --normalize b.json"),
        ("models a --serve mine --query best --json", "prints no list: omit --query best, --json"),
        ("models a --serve mine --clone b --json", "prints no list: omit --json"),
        ("record a --out b --episodes 1 --random --stochastic", "random actions only: omit --stochastic"),
        ("record a --out b --episodes 1 --random --epsilon 0.5", "random actions only: omit --epsilon 0.5"),
        ("record a --out b --replay --env-steps 9 --random", "plays nothing: omit --env-steps 9, --random"),
        ("evaluate a --video-episodes 3", "without --video FILE.mp4: omit --video-episodes 3"),
        ("results draw --hours 2", "draw has no use for options of other actions: omit --hours 2.0"),
        ("results draw --preset a --runs b", "omit --preset a, --runs b"),
        ("results add run --page a.md", "add has no use for options of other actions: omit --page a.md"),
        ("results run --preset a", "run has no use for options of other actions: omit --preset a"),
        ("dataset info a --out b --best 0.1", "info has no use for options of other actions: omit --best 0.1, --out b"),
        ("dataset view a --json", "omit --json"),
        ("dataset merge a b --out c --expert 3", "omit --expert 3.0"),
        ("dataset convert a --out b --max-episode-steps 9", "file of D4RL: omit --max-episode-steps 9"),
        ("league ppo --rule fcp --main-exploiters 2", "trains no exploiters: omit --main-exploiters 2"),
        ("league ppo --rule fcp --league-exploiters 0", "trains no exploiters: omit --league-exploiters 0"),
        ("train --json ppo_cartpole", "only --list prints JSON: omit --json"),
    ],
)
def test_options_without_effect_are_rejected(capsys, arguments, message):
    assert message in rejection(capsys, arguments.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("tune ppo_cartpole --space x.toml --trails 5", "jaxsrl tune has no option --trails: did you mean --trials?"),
        ("population ppo_cartpole --space x --env_step=9", "no option --env-step: did you mean --env-steps?"),
        ("plan ppo_cartpole --gpu 2", "jaxsrl plan has no option --gpu: did you mean --gpus?"),
        ("league ppo --main-agent 2", "did you mean --main-agents?"),
        ("evalute runs/x", "there is no command 'evalute': did you mean evaluate?"),
        ("xyzzy", "there is no command 'xyzzy': `jaxsrl --help` lists the commands"),
    ],
)
def test_misspelled_options_and_commands_get_a_suggestion(capsys, arguments, message):
    printed = rejection(capsys, arguments.split())
    assert message in printed
    assert printed.count("\n") == 1


DERIVED = """
import dataclasses
from experiments.ppo_cartpole import EXPERIMENT
from jaxsrl import Experiment

@dataclasses.dataclass(frozen=True)
class Study(Experiment):
    trail: int = 0
    main_agent: bool = True

EXPERIMENT = Study(EXPERIMENT.env, EXPERIMENT.agent)
"""


def test_options_of_a_derived_experiment_are_no_misspelled_ones(capsys, tmp_path):
    (tmp_path / "study.py").write_text(DERIVED)
    command = parse(["tune", "study.py", "--space", "x.toml", "--trail", "5", "--run.seed=1"])
    assert command.flags == ("--trail", "5", "--run.seed=1")
    assert parse(["league", "study.py", "--no-main-agent"]).flags == ("--no-main-agent",)
    message = rejection(capsys, ["tune", "study.py", "--space", "x.toml", "--trails", "5"])
    assert "jaxsrl tune has no option --trails: did you mean --trials?" in message


def test_commands_are_found_with_underscores_too():
    assert type(parse(["record_sets", "ppo", "--out", "x"])).__name__ == "RecordSets"


def test_flags_of_the_experiment_are_passed_on():
    flags = ("--plan", "serial", "--config", "x.yaml", "--run.seed", "1", "--nonsense", "-3")
    validate_passed_on("population", TrainPopulation("ppo", Path("x.toml")), flags)


def test_serving_without_a_cluster_names_its_own_option(capsys, tmp_path, monkeypatch):
    def none_found(flag):
        raise UserError(f"{flag} auto found no cluster") from ConnectionError("none runs")

    monkeypatch.setattr(local_cluster, "joined_cluster", none_found)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a process with threads was forked"))
    (tmp_path / "index.json").write_text('{"tags": {}, "notes": {}, "is_frozen": false}')
    message = rejection(capsys, ["models", str(tmp_path), "--serve", "mine"])
    assert message.startswith("error: --serve needs a running Ray cluster, and found none (none runs): start one with")
    assert "auto" not in message
