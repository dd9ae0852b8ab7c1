"""Loading a checkpoint imports no module that the checkpoint names, unless the caller says so; results print in a line."""

import dataclasses
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxsrl.cli.main
from agents.catalog import AGENTS
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from experiments.ppo_cartpole import EXPERIMENT
from jaxsrl.checkpoints.store import CheckpointStore
from jaxsrl.config.parts import EvalConfig
from jaxsrl.config.serialization import to_json
from jaxsrl.evaluation.evaluate import EvaluationReport
from jaxsrl.evaluation.load_agent import LoadedAgent, load_agent
from jaxsrl.training.run_state import state_to_arrays
from jaxsrl.training.setup import RunReport

PLANTED = """
import gymnasium
from pathlib import Path
Path({mark!r}).touch()
gymnasium.register("Planted-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=5)
def parallel_env():
    raise RuntimeError
"""


def saved_with(directory: Path, env: EnvConfig, **settings: object) -> Path:
    run = dataclasses.replace(EXPERIMENT.run, **settings)
    experiment = dataclasses.replace(EXPERIMENT, network=NetworkConfig(hidden_sizes=(4,)), agent=PPOConfig(), run=run)
    agent = make_ppo(experiment.agent, EnvConfig("CartPole-v1").source().spec(), experiment.network)
    arrays = state_to_arrays(agent.init(jax.random.key(0)))
    metadata = {"agent_name": "ppo", "experiment": {**to_json(experiment), "env": to_json(env)}}
    return CheckpointStore(directory).save(1, arrays, metadata)


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A module that leaves a mark when it is imported; its name, and the mark."""
    mark, name = tmp_path / "imported", "planted_module_of_test_load"
    (tmp_path / f"{name}.py").write_text(PLANTED.format(mark=str(mark)))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name, mark


@pytest.mark.parametrize("suite", ["gymnasium", "gymnasium_vector", "minigrid", "pettingzoo"])
def test_a_checkpoint_that_names_a_module_imports_nothing(tmp_path, planted, suite):
    name, mark = planted
    path = saved_with(
        tmp_path / "saved", EnvConfig(name if suite == "pettingzoo" else f"{name}:Planted-v0", suite=suite)
    )
    with pytest.raises(UserError, match=r"is in a module whose code would be run: .*trust_env=True"):
        load_agent(path)
    assert not mark.exists()


@pytest.mark.parametrize(
    "kwargs", ['{{"env_id": "{}:E-v0"}}', '{{"a": [{{"b": "{}\\u003aE-v0"}}]}}', '{{"env_id": "{}"}}']
)
def test_load_agent_rejects_nested_env_in_arguments(tmp_path, planted, kwargs):
    name, mark = planted
    path = saved_with(tmp_path / "saved", EnvConfig("GymV26Environment-v0", kwargs=kwargs.format(name)))
    with pytest.raises(UserError, match=r"is in a module whose code would be run"):
        load_agent(path)
    assert not mark.exists()


@pytest.mark.parametrize("field", ["kwargs", "eval"])
def test_load_agent_imports_no_module_of_arguments(tmp_path, field):
    kwargs = '{"wraps": ["evil:E-v0"]}'
    kinds = {
        "kwargs": {"env": EnvConfig("CartPole-v1", kwargs=kwargs)},
        "eval": {"eval": EvalConfig(env_kwargs=kwargs)},
    }
    path = saved_with(tmp_path / "saved", **{"env": EnvConfig("CartPole-v1"), **kinds[field]})
    with pytest.raises(UserError, match=r"is in a module whose code would be run"):
        load_agent(path)


def test_load_agent_accepts_trust_env_or_env(tmp_path, planted):
    name, mark = planted
    path = saved_with(tmp_path / "saved", EnvConfig(f"{name}:Planted-v0"))
    assert load_agent(path, env=EnvConfig("CartPole-v1")).source.spec().env_id == "CartPole-v1"
    assert not mark.exists()
    assert "Planted-v0" in load_agent(path, trust_env=True).source.spec().env_id
    assert mark.exists()


def test_the_command_line_says_how_to_trust_a_checkpoint(tmp_path, planted, capsys):
    path = saved_with(tmp_path / "saved", EnvConfig(f"{planted[0]}:Planted-v0"))
    with pytest.raises(SystemExit) as stopped:
        jaxsrl.cli.main.main(["evaluate", str(path), "--episodes", "1"])
    assert stopped.value.code == 2
    assert "--trust-env" in capsys.readouterr().err


def test_load_agent_trusts_registered_ids(tmp_path):
    assert load_agent(saved_with(tmp_path, EnvConfig("CartPole-v1"))).update == 0


def test_options_of_the_algorithm_replace_the_checkpoints(tmp_path, monkeypatch):
    path, made = saved_with(tmp_path, EnvConfig("CartPole-v1")), []
    known = AGENTS["ppo"]

    def make(config, spec, network):
        made.append(config)
        return known.make(config, spec, network)

    monkeypatch.setitem(AGENTS, "ppo", known._replace(make=make))
    load_agent(path)
    options = ["--agent-options", "discount=0.5", "optimizer.max-grad-norm=2"]
    jaxsrl.cli.main.main(["evaluate", str(path), "--episodes", "1", *options])
    first, second = made
    clipped = dataclasses.replace(first.optimizer, max_grad_norm=2)
    assert second == dataclasses.replace(first, discount=0.5, optimizer=clipped) != first


def test_an_evaluation_with_other_options_is_not_the_runs(tmp_path):
    saved_with(tmp_path / "checkpoints", EnvConfig("CartPole-v1"))
    command = ["evaluate", str(tmp_path), "--episodes", "1"]
    jaxsrl.cli.main.main([*command, "--agent-options", "discount=0.5"])
    assert not (tmp_path / "eval.json").exists()
    jaxsrl.cli.main.main(command)
    assert (tmp_path / "eval.json").exists()


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("discunt=0.5", "unknown option discunt: did you mean discount?"),
        ("discount=high", "expected float, got 'high'"),
        ("discount", "expected NAME=VALUE"),
        ("=1", "expected NAME=VALUE"),
    ],
)
def test_wrong_options_of_the_algorithm_are_rejected(tmp_path, capsys, option, says):
    path = saved_with(tmp_path, EnvConfig("CartPole-v1"))
    with pytest.raises(SystemExit) as stopped:
        jaxsrl.cli.main.main(["evaluate", str(path), "--agent-options", option])
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err


def test_results_print_their_facts_and_no_arrays():
    params = np.zeros((100, 100))
    report = RunReport(Path("runs/a"), params, 7, 448, 1.5, {"episode/return_mean": 9.0}, "")  # pyright: ignore
    shown = repr(report)
    assert "num_updates=7" in shown
    assert "runs/a" in shown
    evaluation = EvaluationReport("CartPole-v1", (1.0, 3.0) * 100, (5, 7) * 100, 0, True)
    assert repr(evaluation) == (
        "EvaluationReport('CartPole-v1', 200 episodes, mean_return=2, std_return=1, mean_length=6, seed=0, greedy=True)"
    )
    source = EnvConfig("CartPole-v1").source()
    loaded = LoadedAgent(make_ppo(PPOConfig(), source.spec(), NetworkConfig()), params, source, Path("1"), 7, None)
    for one in (shown, repr(evaluation), repr(loaded)):
        assert "\n" not in one
        assert "0., 0." not in one
        assert len(one) < 400
