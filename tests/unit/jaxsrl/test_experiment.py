"""Experiments as values: the agents that they make, the files of experiments/, and the report of a training."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest

import jaxsrl.experiment
from agents.catalog import AGENTS, fill_sizes, find_make_agent
from agents.networks.config import NetworkConfig
from agents.ppg import PPGConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from envpool_bridge.options import SupervisorOptions
from jaxsrl.config.run_config import RunConfig
from jaxsrl.config.serialization import to_json
from jaxsrl.evaluation import final_evaluation
from jaxsrl.evaluation.evaluate import EvaluationReport, evaluate
from jaxsrl.evaluation.final_evaluation import read_same_evaluation, write_final_evaluation
from jaxsrl.evaluation.load_agent import load_agent
from jaxsrl.experiment import Experiment, load_experiment
from tests.support.run_configs import run_config

FILES = sorted((Path(__file__).parents[3] / "experiments").glob("[a-z]*.py"))
SMALL = PPOConfig(num_minibatches=1, num_epochs=1)
NETWORK = NetworkConfig(hidden_sizes=(4,))


def small_run(directory, **changes):
    settings = {"num_envs": 4, "rollout_length": 8, "total_env_steps": 64, "plan": "serial", "eval_final_episodes": 3}
    return run_config(
        **{"name": "run", "directory": str(directory), "metrics_interval_seconds": 0, **settings, **changes}
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_experiment_file_holds_a_value_of_a_known_agent(path):
    experiment = load_experiment(path)
    assert isinstance(experiment.env, EnvConfig)
    assert find_make_agent(experiment.agent)
    assert experiment.agent == fill_sizes(experiment.agent, 0, 32, 128), "sizes are the run's"
    assert json.loads(json.dumps(to_json(experiment))) == to_json(experiment)


def load_named(name, *flags):
    return load_experiment(FILES[0].parent / f"{name}.py", flags)


@pytest.mark.parametrize(
    ("env_id", "normalizes", "entropy_coef"),
    [("CartPole-v1", True, 0.01), ("Pendulum-v1", True, 0.0), ("FrozenLake-v1", False, 0.01)],
)
def test_ppo_file_chooses_settings_by_vector_spaces(env_id, normalizes, entropy_coef):
    experiment = load_named("ppo", "--env.id", env_id, "--run.seed", "3")
    assert (experiment.env, experiment.run.seed) == (EnvConfig(env_id), 3)
    assert (experiment.network.torso, experiment.network.hidden_sizes) == ("mlp", (64, 64))
    assert experiment.agent.normalization.observations == normalizes
    assert experiment.agent.entropy_coef == entropy_coef
    experiment.build()


@pytest.mark.parametrize("name", ["ppo", "dqn", "impala"])
def test_files_for_any_env_choose_settings_for_images(name):
    pytest.importorskip("ale_py")
    experiment = load_named(name, "--env.id=ALE/Pong-v5", "--env.kwargs.frame_skip", "2", "--network.hidden-sizes", "8")
    assert json.loads(experiment.env.kwargs) == {"frame_skip": 2}  # pyright: ignore
    assert (experiment.network.torso, experiment.network.hidden_sizes) == ("nature_cnn", (8,))
    assert experiment.run.total_env_steps == 10_000_000
    assert load_named(name).run.total_env_steps < 10_000_000


def test_files_for_any_env_show_help(capsys):
    with pytest.raises(SystemExit) as exited:
        load_named("ppo", "--help")
    assert exited.value.code == 0
    assert "--env.id" in (shown := capsys.readouterr().out)
    assert "--agent.num-epochs" in shown


@pytest.mark.parametrize(("flag", "error"), [("--env.id=NoSuch-v0", UserError), ("--env.no-such=1", SystemExit)])
def test_files_for_any_env_reject_bad_environments(flag, error):
    with pytest.raises(error):
        load_named("ppo", flag)


@pytest.mark.parametrize("name", AGENTS)
def test_find_make_agent_finds_every_algorithm_by_its_config(name):
    assert find_make_agent(AGENTS[name].config()) is AGENTS[name].make


def test_find_make_agent_rejects_subclasses_and_other_values():
    class Mine(PPOConfig):
        pass

    for config in (Mine(), None, "ppo"):
        with pytest.raises(UserError, match="expected one of A2CConfig, .* or pass make_agent"):
            find_make_agent(config)


def test_fill_sizes_fills_only_existing_fields():
    assert fill_sizes(PPOConfig(), 7, 8, 9) == PPOConfig(total_updates=7)
    assert fill_sizes(PPGConfig(), 7, 16, 9) == PPGConfig(total_updates=7, rollout_length=16, num_rows=9)
    assert fill_sizes({"discount": 0.9}, 7, 8, 9) == {"discount": 0.9}


def test_build_calls_custom_make_agent_with_total_updates():
    calls = []

    def make_agent(config, spec, network):
        calls.append((config, spec.env_id, network))
        return make_ppo(config, spec, NETWORK)

    run = RunConfig(num_envs=4, rollout_length=8, total_env_steps=320)
    experiment = Experiment(EnvConfig("CartPole-v1"), SMALL, "my network", run, make_agent=make_agent)
    agent, _, spec = experiment.build()
    assert calls == [(dataclasses.replace(SMALL, total_updates=10), "CartPole-v1", "my network")]
    assert (agent.name, spec.env_id) == ("ppo", "CartPole-v1")


def test_build_starts_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Experiment(EnvConfig("CartPole-v1"), SMALL).build()
    assert list(tmp_path.iterdir()) == []


def test_train_reports_evaluation_and_saves_the_value(tmp_path, capsys):
    experiment = Experiment(EnvConfig("CartPole-v1"), SMALL, NETWORK, small_run(tmp_path))
    report = experiment.train(quiet=True)
    assert capsys.readouterr().out == ""
    assert (report.env_steps, report.stopped_by) == (64, "")
    assert report.evaluation is not None
    assert len(report.evaluation.returns) == 3
    saved = json.loads((report.directory / "eval.json").read_text())
    assert saved.items() >= {"update": 2, **report.evaluation.to_json()}.items()
    assert json.loads((report.directory / "config.json").read_text())["experiment"] == to_json(experiment)
    loaded = load_agent(report.directory)
    assert loaded.update == 2
    again = experiment.train(quiet=True)
    assert again.seconds == 0.0
    assert again.evaluation == report.evaluation


def test_a_complete_run_plays_its_final_episodes_once(tmp_path, monkeypatch):
    played = []

    def play(*args, **options):
        played.append(options["episodes"])
        return evaluate(*args, **options)

    monkeypatch.setattr(final_evaluation, "evaluate", play)
    experiment = Experiment(EnvConfig("CartPole-v1"), SMALL, NETWORK, small_run(tmp_path))
    first = experiment.train(quiet=True)
    written = (first.directory / "eval.json").read_text()
    assert experiment.train(quiet=True).evaluation == first.evaluation
    assert (first.directory / "eval.json").read_text() == written
    assert played == [3]
    changes = {"eval_final_episodes": 2}, {"eval_env_kwargs": '{"sutton_barto_reward": true}'}, {}
    for number, change in enumerate(changes):
        report = dataclasses.replace(experiment, run=small_run(tmp_path, **change)).train(quiet=True)
        assert len(played) == number + 2
    assert report.evaluation == first.evaluation  # pyright: ignore
    longer = dataclasses.replace(experiment, run=small_run(tmp_path, total_env_steps=96))
    assert longer.train(quiet=True).num_updates == 3
    assert len(played) == 5
    (first.directory / "eval.json").write_text("damaged")
    longer.train(quiet=True)
    assert len(played) == 6


def test_a_complete_run_of_another_environment_is_played_again(tmp_path):
    """The options of the environment change by a partial restore that plays no final episodes."""
    first = Experiment(EnvConfig("CartPole-v1"), SMALL, NETWORK, small_run(tmp_path)).train(quiet=True)
    other = Experiment(EnvConfig("CartPole-v1", kwargs='{"max_episode_steps": 5}'), SMALL, NETWORK, small_run(tmp_path))
    none = small_run(tmp_path, eval_final_episodes=0, checkpoint_partial_restore=True)
    assert dataclasses.replace(other, run=none).train(quiet=True).evaluation is None
    report = other.train(quiet=True)
    assert (first.num_updates, report.num_updates, report.seconds) == (2, 2, 0.0)
    assert min(first.evaluation.lengths) > 5 >= max(report.evaluation.lengths)  # pyright: ignore


def test_dropped_episodes_are_played_again_where_errors_raise(tmp_path):
    config = small_run(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    path, played = (
        tmp_path / "eval.json",
        EvaluationReport("CartPole-v1", (1.0, 2.0, 3.0), (1, 2, 3), config.seed, True),
    )
    drops = small_run(tmp_path, eval_processes=2, pool_supervision=SupervisorOptions(bad_env_output="drop_episode"))
    write_final_evaluation(path, 2, played, drops)
    assert read_same_evaluation(path, 2, drops) == played
    assert read_same_evaluation(path, 2, config) is None


def test_a_killed_evaluation_leaves_none_of_other_parameters(tmp_path, monkeypatch):
    experiment = Experiment(EnvConfig("CartPole-v1"), SMALL, NETWORK, small_run(tmp_path))
    file = experiment.train(quiet=True).directory / "eval.json"
    shutil.rmtree(file.parent / "checkpoints")
    monkeypatch.setattr(final_evaluation, "evaluate", lambda *args, **options: {}["killed"])
    with pytest.raises(KeyError, match="killed"):
        experiment.train(quiet=True)
    assert not file.exists()


def test_train_takes_agent_and_environment_function(tmp_path, capsys):
    def make():
        return gymnasium.make("CartPole-v1", max_episode_steps=6)

    agent = make_ppo(SMALL, jaxsrl.make_env(make).spec(), NETWORK)
    report = jaxsrl.train(agent, make, small_run(tmp_path))
    assert max(report.evaluation.returns) <= 6  # pyright: ignore
    assert "evaluated 3 greedy episodes" in capsys.readouterr().out
    assert jaxsrl.train(agent, make, small_run(tmp_path, eval_final_episodes=0), quiet=True).evaluation is None


def test_a_host_that_cannot_be_split_any_more_is_an_error(tmp_path):
    present = len(jax.devices())
    run = small_run(tmp_path, machine_num_cpu_devices=present + 1)
    with pytest.raises(UserError, match=f"is set too late: jax already runs with {present} host devices"):
        Experiment(EnvConfig("CartPole-v1"), SMALL, NETWORK, run).train(quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_training_in_code_splits_the_host(tmp_path):
    script = tmp_path / "two_devices.py"
    script.write_text(_TWO_DEVICES.format(directory=str(tmp_path)))
    kept = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, env=kept, check=False)
    assert done.stdout == "2\n", done.stderr[-2000:]


_TWO_DEVICES = """
import jax
from agents.a2c import A2CConfig
from jaxsrl import EnvConfig, Experiment, NetworkConfig, RunConfig
from jaxsrl.config.parts import EvalConfig, LearnerConfig, MachineConfig

RUN = RunConfig(
    directory={directory!r}, name="run", plan="serial", num_envs=4, rollout_length=4, total_env_steps=32,
    machine=MachineConfig(num_cpu_devices=2), learner=LearnerConfig(num_devices=2), eval=EvalConfig(final_episodes=0),
)
if __name__ == "__main__":
    Experiment(EnvConfig("CartPole-v1"), A2CConfig(), NetworkConfig(hidden_sizes=(4,)), RUN).train(quiet=True)
    print(len(jax.devices()))
"""


def test_load_agent_imports_the_functions_that_it_trusts(tmp_path):
    run = small_run(tmp_path, eval_final_episodes=0)
    env = partial(gymnasium.make, "CartPole-v1", max_episode_steps=9)
    report = Experiment(env, SMALL, NETWORK, run, make_agent=make_ppo).train(quiet=True)
    with pytest.raises(
        UserError, match=r"agents.ppo:make_ppo, gymnasium.*:make\(.*=9\), is in a module whose code would be"
    ):
        load_agent(report.directory)
    loaded = load_agent(report.directory, trust_env=True)
    assert jax.tree.all(jax.tree.map(np.array_equal, loaded.params, report.state.params))
    assert evaluate(loaded.agent, loaded.params, loaded.source, episodes=1).mean_return <= 9.0


def test_make_env_takes_ids_configs_functions_and_sources():
    config = EnvConfig("CartPole-v1")
    source = jaxsrl.make_env("CartPole-v1")
    assert source.spec() == jaxsrl.make_env(config).spec() == jaxsrl.make_env(source).spec()
    assert jaxsrl.make_env(lambda: gymnasium.make("CartPole-v1")).spec().observation == source.spec().observation
    with pytest.raises(UserError, match="expected an EnvConfig, a source, or a function"):
        jaxsrl.make_env(3)  # pyright: ignore
