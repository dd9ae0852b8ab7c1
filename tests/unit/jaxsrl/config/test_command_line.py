"""Command lines of configurations: one line for a rejected value, tyro's message otherwise."""

import dataclasses
import sys

import pytest

from envpool_bridge.errors import UserError
from experiments import dqn_cartpole, ppo, ppo_cartpole
from experiments.ppo_cartpole import EXPERIMENT
from jaxsrl.config.command_line import parse_command_line
from jaxsrl.experiment import cli, parse_flags


@dataclasses.dataclass
class Loud:
    """A configuration that writes to stderr while it is made."""

    value: int = 0

    def __post_init__(self):
        sys.stderr.write(f"got {self.value}\n")


@pytest.mark.parametrize("experiment", [EXPERIMENT, ppo.make_experiment])
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--run.num-envs", "0"], "run.num_envs must be at least 1: got 0"),
        (["--pool.num-workers", "0"], "pool.num_workers must be at least 1: got 0"),
    ],
)
def test_a_rejected_value_is_one_line_with_status_2(capsys, experiment, flags, message):
    with pytest.raises(UserError):
        parse_flags(experiment, flags)
    with pytest.raises(SystemExit) as end:
        cli(experiment, flags)
    assert end.value.code == 2
    printed = capsys.readouterr()
    assert printed.err == f"error: {message}\n"
    assert printed.out == ""


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--agent.learning-rate", "high"], "could not convert string to float"),
        (["--env.suite", "atary"], "invalid choice 'atary'"),
        (["--run.nun-envs", "3"], "--run.num-envs"),
    ],
)
def test_messages_of_the_parser_name_the_command_once(capsys, monkeypatch, flags, message):
    monkeypatch.setattr("sys.argv", [ppo_cartpole.__file__])
    with pytest.raises(SystemExit) as end:
        cli(EXPERIMENT, flags)
    assert end.value.code == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("jaxsrl train ppo_cartpole --help") == 1
    assert "ppo_cartpole.py" not in printed


def test_output_of_a_successful_parse_stays(capsys):
    assert parse_command_line(Loud, args=["--value", "3"]) == Loud(3)
    assert capsys.readouterr().err == "got 3\ngot 3\n"


def test_output_of_a_parse_that_fails_otherwise_stays(capsys):
    @dataclasses.dataclass
    class Broken(Loud):
        def __post_init__(self):
            super().__post_init__()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        parse_command_line(Broken, args=["--value", "3"])
    assert capsys.readouterr().err == "got 3\n"


def test_an_error_that_the_caller_handles_is_not_reported(capsys):
    try:
        raise UserError("outer")
    except UserError:
        with pytest.raises(SystemExit):
            parse_command_line(Loud, args=["--valu", "3"])
    assert "--valu" in capsys.readouterr().err


def test_completion_scripts_are_printed_once(capsys):
    with pytest.raises(SystemExit):
        parse_flags(EXPERIMENT, ["--tyro-print-completion", "bash"], program="jaxsrl train ppo_cartpole")
    assert capsys.readouterr().out.count("AUTOMATICALLY GENERATED") == 1


OFFLINE = ["--plan", "offline", "--dataset.path", "set"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([*OFFLINE, "--run.total-env-steps", "5000"], "plan offline has no env steps.*use --run.gradient-steps"),
        ([*OFFLINE, "--dataset.share", "0.9"], "dataset.share 0.9 has no effect: plan offline"),
        ([*OFFLINE, "--run.rollout-length", "8"], "run.rollout_length 8 has no effect: plan offline collects no steps"),
        (["--dataset.share", "0.9"], "dataset.share 0.9 has no effect: the run has no dataset"),
        (["--dataset.gradient-steps-per-update", "10"], "is for plan offline, not single_learner"),
    ],
)
def test_flags_without_effect_are_rejected(flags, message):
    with pytest.raises(UserError, match=message):
        parse_flags(EXPERIMENT, flags)


@pytest.mark.parametrize("name", ["capacity", "min-size", "gradient-steps-per-env-step"])
def test_rates_of_replay_are_rejected_without_environments(name):
    with pytest.raises(UserError, match=r"has no effect: plan offline collects no steps; omit it, or use"):
        parse_flags(dqn_cartpole.EXPERIMENT, [*OFFLINE, f"--agent.replay.{name}", "3"])


def test_flags_with_effect_are_accepted():
    run = parse_flags(EXPERIMENT, ["--dataset.path", "set", "--dataset.share", "0.9", "--run.total-env-steps", "9"]).run
    assert (run.dataset.share, run.total_env_steps) == (0.9, 9)
    run = parse_flags(EXPERIMENT, [*OFFLINE, "--dataset.gradient-steps-per-update", "10"]).run
    assert run.dataset.gradient_steps_per_update == 10
