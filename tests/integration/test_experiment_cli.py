"""The command line of an experiment's file: short flags, devices of the host, custom agents, one line for what cannot run."""

import dataclasses
import os
import subprocess
import sys

import pytest

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.errors import UserError
from jaxsrl.config.run_config import RunConfig
from jaxsrl.experiment import Experiment, cli, parse_flags

EXPERIMENT = Experiment(env=EnvConfig("CartPole-v1"), agent=PPOConfig(), run=RunConfig(num_envs=8))
SCRIPT = """
import sys
from agents.ppo import PPOConfig
from jaxsrl import EnvConfig
from jaxsrl.experiment import Experiment, cli

def make_agent(config, spec, network):
    import jax
    print("devices", len(jax.local_devices()), flush=True)
    sys.exit()

if sys.argv[1] == "late":
    import jax
    jax.local_devices()
cli(Experiment(EnvConfig("CartPole-v1"), PPOConfig(), make_agent=make_agent), sys.argv[2:])
"""


def ran(when: str, *arguments: str, flags: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", SCRIPT, when, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=150)


@pytest.mark.parametrize("flags", [("--plan", "serial"), ("--plan=serial",), ("--run.plan", "serial")])
def test_parse_flags_reads_short_plan_flag(flags):
    assert parse_flags(EXPERIMENT, flags).run == RunConfig(num_envs=8, plan="serial")


def test_parse_flags_changes_only_the_named_fields():
    flags = ["--env.id", "Acrobot-v1", "--agent.discount", "0.5", "--network.hidden-sizes", "7", "8", "--run.seed", "3"]
    changed = parse_flags(EXPERIMENT, flags)
    assert changed == Experiment(
        env=EnvConfig("Acrobot-v1"),
        agent=PPOConfig(discount=0.5),
        network=NetworkConfig(hidden_sizes=(7, 8)),
        run=RunConfig(num_envs=8, seed=3),
    )
    assert parse_flags(EXPERIMENT, []) == EXPERIMENT


def test_parse_flags_sets_entries_of_json_objects():
    base = dataclasses.replace(EXPERIMENT, env=EnvConfig("CartPole-v1", kwargs='{"a": 1, "b": "x"}'))
    flags = ["--env.kwargs.a", "2", "--env.kwargs.c=true", "--policies.mapping.agent_*", "one", "--run.seed", "3"]
    changed = parse_flags(base, [*flags, "--env.kwargs.d", "sum", "--policies.mapping.*", "two"])
    assert changed.env.arguments() == {"a": 2, "b": "x", "c": True, "d": "sum"}
    assert list(changed.policies.policy_of_agent().items()) == [("agent_*", "one"), ("*", "two")]
    assert changed.run.seed == 3
    emptied = parse_flags(base, ["--env.kwargs", "{}", "--env.kwargs.e", "[1, 2]"])
    assert emptied.env.arguments() == {"e": [1, 2]}
    assert parse_flags(base, ["--env.kwargs", '{"f": 5}']).env.kwargs == '{"f": 5}'


def test_parse_flags_takes_fields_of_json_objects():
    base = dataclasses.replace(EXPERIMENT, env=EnvConfig("CartPole-v1", kwargs={"a": 1, "b": "x"}))
    fields = [
        "--env.kwargs",
        "a=2",
        "c=null",
        "d=8 x 8",
        "--run.seed",
        "3",
        "--env.kwargs=e=-1",
        "--eval.env-kwargs",
        "f=true",
    ]
    changed = parse_flags(
        base, [*fields, "--policies.mapping", "agent_*=one", "*=two", "--env.row-kwargs", 'easy={"g": 1}']
    )
    assert changed.env.arguments() == {"a": 2, "b": "x", "c": None, "d": "8 x 8", "e": -1}
    assert (changed.run.seed, changed.run.eval.env_kwargs) == (3, '{"f": true}')
    assert list(changed.policies.policy_of_agent().items()) == [("agent_*", "one"), ("*", "two")]
    assert list(changed.env.tasks()) == ["easy"]
    assert changed == parse_flags(base, [*to_json_flags(changed), "--run.seed", "3"])


def to_json_flags(experiment):
    values = {"env.kwargs": experiment.env.kwargs, "env.row-kwargs": experiment.env.row_kwargs}
    values |= {"eval.env-kwargs": experiment.run.eval.env_kwargs, "policies.mapping": experiment.policies.mapping}
    return [part for name, text in values.items() for part in (f"--{name}", text)]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--env.kwargs.a"], "expected a value after --env.kwargs.a"),
        (["--env.kwargs", "[3]", "--env.kwargs.a", "1"], "cannot set 'a' of '.3.': expected a JSON object"),
        (
            ["--env.kwargs", "fast"],
            "--env.kwargs: expected NAME=VALUE fields, such as frame_skip=4, or a JSON object, got 'fast'",
        ),
        (["--env.kwargs", "[1"], r"env.kwargs: expected a JSON object, got '\[1'"),
        (["--env.kwargs", "{", "--env.kwargs.a", "1"], "cannot set 'a' of '{': expected a JSON object"),
    ],
)
def test_parse_flags_rejects_entries_without_an_object(flags, message):
    with pytest.raises(UserError, match=message):
        parse_flags(EXPERIMENT, flags)


def test_parse_flags_keeps_functions_and_sources():
    source, make = GymnasiumSource(dict), lambda *_: None
    changed = parse_flags(Experiment(source, PPOConfig(), make, make_agent=make), ["--run.seed", "3"])
    assert (changed.env, changed.network, changed.make_agent, changed.run.seed) == (source, make, make, 3)


def test_help_shows_short_plan_flag(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli(EXPERIMENT, ["--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert "--plan STR, --run.plan STR" in printed
    assert "make-agent" not in printed


def test_cli_rejects_unknown_agent_config(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli(Experiment(EnvConfig("CartPole-v1"), agent=NetworkConfig()), [])
    assert stopped.value.code == 2
    assert "expected one of A2CConfig, AlphaZeroConfig, " in capsys.readouterr().err


def test_host_is_split_before_jax_starts():
    done = ran("early", "--machine.num-cpu-devices", "4")
    assert (done.stdout, done.returncode) == ("devices 4\n", 0), done.stderr
    assert ran("early").stdout == "devices 1\n"


@pytest.mark.slow
def test_host_that_is_split_already_stays_as_it_is():
    done = ran("late", "--machine.num-cpu-devices", "4", flags="--xla_force_host_platform_device_count=4")
    assert (done.stdout, done.returncode) == ("devices 4\n", 0), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["", "--xla_force_host_platform_device_count=3"])
def test_splitting_host_too_late_is_rejected_in_one_line(flags):
    done = ran("late", "--machine.num-cpu-devices", "4", flags=flags)
    assert done.returncode == 2
    assert f"jax already runs with {3 if flags else 1} host devices; split the host" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_flag_overrides_environment_variable():
    assert (
        ran("early", "--machine.num-cpu-devices", "2", flags="--xla_force_host_platform_device_count=3").stdout
        == "devices 2\n"
    )
