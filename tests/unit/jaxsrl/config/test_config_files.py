"""Configuration files: what they may hold, which error names what, and flags that override them."""

import dataclasses
import json

import pytest

from agents.dqn import DQNConfig
from agents.ppo import PPOConfig
from envpool_bridge.errors import UserError
from jaxsrl import EnvConfig, Experiment, NetworkConfig, RunConfig
from jaxsrl.cli.commands.config import ShowConfig
from jaxsrl.config.files import option_names
from jaxsrl.config.serialization import to_json
from jaxsrl.experiment import load_experiment, parse_flags

EXPERIMENT = Experiment(EnvConfig("CartPole-v1"), PPOConfig(), NetworkConfig(hidden_sizes=(8,)))
YAML = """
pool: {num-workers: 4}
run: {seed: 3, max_policy_lag: 0}
agent: {learning_rate: 1e-4}
network: {hidden_sizes: [32, 16]}
env: {kwargs: {frame_skip: 2}}
"""
TOML = """
pool.num_workers = 4
run = {seed = 3, max_policy_lag = 0}
agent.learning_rate = 1e-4
network.hidden_sizes = [32, 16]
env.kwargs = {frame_skip = 2}
"""


def parse(directory, text, *flags, suffix=".yaml"):
    path = directory / f"options{suffix}"
    path.write_text(text)
    return parse_flags(EXPERIMENT, ["--config", str(path), *flags])


def test_a_missing_run_or_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"there is no .*typo in .*: expected a run directory or a file of options"):
        ShowConfig("show", (tmp_path / "typo",)).run()
    (tmp_path / "typo").write_text("")
    with pytest.raises(UserError, match=r"ends with .yaml, .toml or .json: got .*typo"):
        ShowConfig("show", (tmp_path / "typo",)).run()


@pytest.mark.parametrize(("text", "suffix"), [(YAML, ".yaml"), (TOML, ".toml")])
def test_config_file_sets_options_as_flags_do(tmp_path, text, suffix):
    flags = ["--pool.num-workers", "4", "--run.seed", "3", "--run.max-policy-lag", "0", "--agent.learning-rate", "1e-4"]
    flags += ["--network.hidden-sizes", "32", "16", "--env.kwargs.frame_skip", "2"]
    assert parse(tmp_path, text, suffix=suffix) == parse_flags(EXPERIMENT, flags)


WITH_ENTRIES = dataclasses.replace(EXPERIMENT, env=EnvConfig("CartPole-v1", kwargs='{"a": 1, "b": {"c": 2}}'))


@pytest.mark.parametrize(
    ("text", "kwargs"),
    [
        ("env.kwargs.a: 3", {"a": 3, "b": {"c": 2}}),
        ("env: {kwargs: {a: '3'}}", {"a": "3", "b": {"c": 2}}),
        ("env.kwargs: {b: {d-e: 4}}", {"a": 1, "b": {"d-e": 4}}),
        ("env.kwargs.x-y.z: 5", {"a": 1, "b": {"c": 2}, "x-y.z": 5}),
        ("env.kwargs: {}", {}),
        ("""env.kwargs: '{"a": 3}'""", {"a": 3}),
    ],
)
def test_config_file_sets_entries_as_flags_do(tmp_path, text, kwargs):
    path = tmp_path / "options.yaml"
    path.write_text(text)
    assert json.loads(parse_flags(WITH_ENTRIES, ["--config", str(path)]).env.kwargs) == kwargs


def test_config_file_keeps_names_of_entries(tmp_path):
    text = """
policies: {mapping: {agent-0: one}, frozen: {one: runs/a}, agents: {one: {learning_rate: 0.1}}}
policies.mapping.*: two
env: {row-kwargs: {task-a: {x-y: 1}, task-b: {}}}
eval.env-kwargs.x-y: 2
"""
    made = parse(tmp_path, text)
    assert json.loads(made.policies.mapping) == {"agent-0": "one", "*": "two"}
    assert json.loads(made.policies.agents) == {"one": {"learning_rate": 0.1}}
    assert json.loads(made.env.row_kwargs) == {"task-a": {"x-y": 1}, "task-b": {}}
    assert json.loads(made.run.eval.env_kwargs) == {"x-y": 2}


def test_flags_override_config_file(tmp_path):
    experiment = parse(tmp_path, YAML, "--run.seed", "5", "--env.kwargs.frame_skip=7")
    assert (experiment.run.seed, experiment.run.pool.num_workers) == (5, 4)
    assert json.loads(experiment.env.kwargs) == {"frame_skip": 7}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pool: {num_worker: 4}", r"options.yaml: unknown option pool.num_worker: did you mean pool.num_workers\?"),
        ("agnet: {learning_rate: 1}", r"unknown option agnet\S*: did you mean agent"),
        ("run: {seed: 1.5}", "option run.seed: expected int, got 1.5"),
        ("run: {plan: 3}", "option plan: expected str, got 3"),
        ("replay: {memory: disk}", "option replay.memory: expected device or host or cluster, got 'disk'"),
        ("agent: {learning_rate: true}", "expected float, got True"),
        ("pool: {num_workers: -1}", "num_workers"),
        ("env.row_kwargs: {a: 2026-01-01}", "cannot set 'a' of '.*': expected a JSON object"),
        ("- a", "must hold a mapping of options"),
        ("a: [", "is not YAML"),
    ],
)
def test_config_file_rejects_bad_options(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        parse(tmp_path, text)


def write_run(directory, experiment):
    directory.mkdir()
    config = {"agent_name": "ppo", "experiment": to_json(experiment), "env_spec": {}}
    (directory / "config.json").write_text(json.dumps(config))
    return str(directory / "config.json")


def test_config_of_run_makes_its_experiment_again(tmp_path, capsys):
    changed = dataclasses.replace(EXPERIMENT, run=RunConfig(seed=9, target_return=1.0, directory=str(tmp_path)))
    path = write_run(tmp_path / "x", changed)
    again = parse_flags(None, ["--config", path])
    assert again == dataclasses.replace(changed, run=dataclasses.replace(changed.run, name="x_again"))
    assert "trains as x_again" in capsys.readouterr().err
    assert parse_flags(EXPERIMENT, ["--config", path]) == again
    assert parse_flags(None, ["--config", path, "--run.name", "y"]).run.name == "y"


def test_config_of_run_of_another_algorithm_is_rejected(tmp_path):
    path = write_run(tmp_path / "x", EXPERIMENT)
    with pytest.raises(UserError, match=r"unknown option agent\."):
        parse_flags(dataclasses.replace(EXPERIMENT, agent=DQNConfig()), ["--config", path])


def test_config_file_chooses_environment_of_function(tmp_path):
    (tmp_path / "options.toml").write_text('env.id = "Pendulum-v1"\nrun.seed = 2\n')
    from jaxsrl.cli.find_experiment import find_experiment

    experiment = load_experiment(find_experiment("ppo"), ["--config", str(tmp_path / "options.toml")])
    assert (experiment.env.id, experiment.agent.entropy_coef, experiment.run.seed) == ("Pendulum-v1", 0.0, 2)


def test_shown_config_is_config_file(tmp_path, capsys):
    changed = dataclasses.replace(EXPERIMENT, run=RunConfig(seed=9, total_env_steps=77))
    write_run(tmp_path / "x", changed)
    assert ShowConfig("show", (tmp_path / "x",)).run() == 0
    assert parse(tmp_path, capsys.readouterr().out) == changed


def test_config_diff_prints_options_that_differ(tmp_path, capsys):
    write_run(tmp_path / "a", EXPERIMENT)
    write_run(tmp_path / "b", dataclasses.replace(EXPERIMENT, run=RunConfig(seed=9)))
    ShowConfig("diff", (tmp_path / "a", tmp_path / "b")).run()
    assert capsys.readouterr().out == "run.seed: 0 -> 9\n"


def test_option_names_are_dotted():
    assert {"run.pool.num_workers", "agent.learning_rate", "env.id"} <= set(option_names(EXPERIMENT))
