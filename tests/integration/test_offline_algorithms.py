"""Every offline algorithm trains from a recorded dataset and is evaluated."""

import dataclasses

import jax
import numpy as np
import pytest

from agents.api import ReplayConfig
from agents.catalog import AGENTS
from agents.dqn import DQNConfig, make_dqn
from agents.networks.config import NetworkConfig
from agents.sac import SACConfig, make_sac
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.datasets.dataset import find_episodes
from jaxsrl.datasets.hindsight import episode_values, with_last_step
from jaxsrl.envs.registry import make_env
from jaxsrl.evaluation.record import RecordConfig, record
from jaxsrl.experiment import Experiment
from tests.support.run_configs import run_config

CARTPOLE, PENDULUM = EnvConfig("CartPole-v1"), EnvConfig("Pendulum-v1")
NETWORK = NetworkConfig(hidden_sizes=(8,))
STEPS, GRADIENTS = 6, 3


def recorded(directory, env, env_steps=600):
    """Dataset of random actions, which depend on nothing but the seed."""
    source, is_discrete = make_env(env), env.id == CARTPOLE.id
    make, config = (make_dqn, DQNConfig(epsilon_end=1.0)) if is_discrete else (make_sac, SACConfig())
    agent = make(config, source.spec(), NETWORK)
    options = RecordConfig(env_steps=env_steps, epsilon=1.0, max_rows=4)
    return record(agent, agent.init(jax.random.key(0)).params, source, directory, options, {"id": env.id})


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("cartpole") / "set", CARTPOLE)


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("pendulum") / "set", PENDULUM)


def train(directory, name, env, dataset, **options):
    config = AGENTS[name].config(replay=ReplayConfig(batch_size=8))
    if name == "bcq":
        config = dataclasses.replace(config, generator_hidden_sizes=(8,), num_acting_candidates=4)
    if name == "decision_transformer":
        env = dataclasses.replace(env, last_reward=True)
        config = dataclasses.replace(config, context_length=4, num_layers=1, embedding_size=8)
    settings = {
        "name": "run",
        "directory": str(directory),
        "plan": "offline",
        "dataset_path": str(dataset.path),
        "gradient_steps": STEPS,
        "dataset_gradient_steps_per_update": GRADIENTS,
        "num_envs": 4,
        "rollout_length": 8,
        "eval_final_episodes": 2,
        **options,
    }
    return Experiment(env, config, NETWORK, run_config(**settings)).train(quiet=True)


def check(report):
    assert (report.num_updates, report.env_steps) == (STEPS // GRADIENTS, STEPS)
    params = jax.device_get(report.state.params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
    assert np.isfinite(report.evaluation.mean_return)


@pytest.mark.parametrize("name", ["bc", "discrete_cql", "discrete_bcq", "decision_transformer"])
def test_algorithms_of_discrete_actions(cartpole, tmp_path, name):
    check(train(tmp_path, name, CARTPOLE, cartpole))


@pytest.mark.parametrize("name", ["awac", "bc", "bcq", "cql", "decision_transformer", "iql", "rebrac", "sac", "td3_bc"])
def test_algorithms_of_continuous_actions(pendulum, tmp_path, name):
    check(train(tmp_path, name, PENDULUM, pendulum))


def test_the_last_reward_of_a_dataset_is_that_of_the_environment(cartpole, tmp_path):
    env = dataclasses.replace(CARTPOLE, last_reward=True)
    expected, spec = recorded(tmp_path / "set", env), make_env(env).spec()
    actual = with_last_step(cartpole, spec)
    assert actual.manifest.spec.observation == expected.manifest.spec.observation
    for name in ("observation", "last_reward"):
        # The last one is the terminal observation again.
        np.testing.assert_array_equal(actual.steps.observation[name][:-1], expected.steps.observation[name][:-1])
    assert 0.0 < actual.steps.observation["last_reward"].mean() < 1.0
    assert with_last_step(expected, spec) is expected
    assert with_last_step(cartpole, cartpole.manifest.spec) is cartpole


def test_returns_to_go_are_those_of_whole_episodes(pendulum):
    steps, values = pendulum.steps, episode_values(pendulum.steps)
    known = np.isfinite(values["return_to_go"])
    for row in range(steps.reward.shape[1]):
        total, number = None, {}
        for t in range(len(steps.reward)):
            number[t] = 0 if steps.is_first[t, row] else number[t - 1] + 1
        for t in reversed(range(len(steps.reward))):
            if steps.terminated[t, row] or steps.truncated[t, row]:
                total = 0.0
            if not steps.valid[t, row] or total is None:
                assert not known[t, row]
                continue
            total += float(steps.reward[t, row])
            np.testing.assert_allclose(values["return_to_go"][t, row], total, rtol=1e-5)
            assert values["episode_step"][t, row] == number[t]
    assert known.sum() == find_episodes(steps).lengths.sum()


def test_whole_episodes_are_only_in_datasets(tmp_path, cartpole):
    with pytest.raises(UserError, match="learns from whole recorded episodes: use --plan offline with --dataset.path"):
        train(tmp_path, "decision_transformer", CARTPOLE, cartpole, plan="serial", dataset_path="", total_env_steps=64)
