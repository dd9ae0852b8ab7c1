"""A function that makes an environment is trained in, saved by its name, and evaluated in."""

import json

import gymnasium
import pytest

import jaxsrl
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.errors import UserError
from tests.support.run_configs import run_config


def make_shorter(steps):
    return lambda: gymnasium.make("CartPole-v1", max_episode_steps=steps)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(the environment's function, the run's directory) after three updates of an experiment."""
    run = run_config(
        name="run",
        directory=str(tmp_path_factory.mktemp("runs")),
        num_envs=4,
        pool_num_workers=2,
        rollout_length=8,
        total_env_steps=3 * 4 * 8,
        eval_final_episodes=2,
        metrics_interval_seconds=0,
    )
    make = make_shorter(7)
    agent, network = PPOConfig(num_minibatches=1, num_epochs=1), NetworkConfig(hidden_sizes=(8,))
    jaxsrl.Experiment(env=make, network=network, agent=agent, run=run).train()
    return make, tmp_path_factory.getbasetemp() / run.directory / "run"


def test_closure_environment_trains_and_is_saved_by_name(trained):
    _, directory = trained
    saved = json.loads((directory / "config.json").read_text())
    assert saved["experiment"]["env"] == f"{__name__}:make_shorter.<locals>.<lambda>"
    assert json.loads((directory / "eval.json").read_text())["episodes"] == 2


def test_a_checkpoint_plays_once_it_is_given_the_function(trained):
    make, directory = trained
    with pytest.raises(UserError, match=r"make_shorter.<locals>.<lambda>, .* an environment can be passed instead"):
        jaxsrl.load_agent(directory)
    loaded = jaxsrl.load_agent(directory, env=make)
    assert loaded.update == 3
    for env in (make, jaxsrl.make_env(make), loaded.source):
        report = jaxsrl.evaluate_agent(loaded.agent, loaded.params, env, episodes=3)
        assert max(report.returns) <= 7


@pytest.mark.slow
def test_run_takes_a_function_itself(tmp_path):
    make = make_shorter(5)
    config = run_config(
        name="own",
        directory=str(tmp_path),
        num_envs=4,
        rollout_length=8,
        total_env_steps=32,
        metrics_interval_seconds=0,
    )
    source = jaxsrl.make_env(make)
    agent = make_ppo(PPOConfig(num_minibatches=1), source.spec(), NetworkConfig(hidden_sizes=(8,)))
    report = jaxsrl.run(jaxsrl.make_plan(config), agent, make, config, quiet=True)
    assert report.env_steps == 32
