"""Policies with algorithms of their own: PPO beside DQN, two DQN, under several plans, through the real run."""

import json

import jax
import numpy as np
import pytest

from agents.dqn import DQNConfig
from agents.networks.config import NetworkConfig
from agents.ops.optimizers import OptimizerConfig
from agents.ppo import PPOConfig
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl import ReplayConfig
from jaxsrl.evaluation.evaluate import evaluate
from jaxsrl.evaluation.load_agent import load_agent
from jaxsrl.experiment import Experiment
from jaxsrl.population.policies import PoliciesConfig
from tests.support.run_configs import run_config

MAPPING = '{"agent_0": "row", "agent_1": "column"}'
PPO = PPOConfig(learning_rate=5e-3, discount=0.9, entropy_coef=0.01, optimizer=OptimizerConfig(max_grad_norm=10.0))
ROWS, STEPS = 8, 4  # 4 environments of 2 agents


def dqn(**changes):
    replay = ReplayConfig(capacity=1024, batch_size=32, min_size=32, gradient_steps_per_env_step=0.25)
    settings = {"learning_rate": 5e-3, "discount": 0.9, "target_update_period": 20, "epsilon_decay_fraction": 0.5}
    return DQNConfig(**{"replay": replay, **settings, **changes})


MIXED = PoliciesConfig(MAPPING, agents={"column": dqn()}, networks={"column": NetworkConfig(hidden_sizes=(8,))})
BOTH = PoliciesConfig(MAPPING, agents={"row": dqn(learning_rate=1e-2), "column": dqn()})


def experiment(directory, policies, updates=6, agent=PPO, **changes):
    settings = {
        "num_envs": ROWS,
        "rollout_length": STEPS,
        "max_policy_lag": 0,
        "eval_final_episodes": 0,
        "plan": "serial",
    }
    settings |= {"total_env_steps": ROWS * STEPS * updates, "name": "run", "directory": str(directory)}
    return Experiment(
        env=EnvConfig("UnequalTeamMatrix", suite="probe"),
        agent=agent,
        network=NetworkConfig(hidden_sizes=(16,)),
        policies=policies,
        run=run_config(**{**settings, **changes}),
    )


def train(directory, policies, **changes):
    return experiment(directory, policies, **changes).train(quiet=True)


def assert_same(one, other, rtol=0.0, atol=0.0):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("policies", [MIXED, BOTH], ids=["mixed", "both"])
def test_own_algorithms_with_workers_match_serial(tmp_path, policies):
    serial = train(tmp_path / "serial", policies)
    workers = train(tmp_path / "workers", policies, plan="single_learner_fine", pool_num_workers=1)
    assert sorted(serial.state.params) == ["column", "row"]
    assert_same(serial.state.params, workers.state.params, rtol=1e-4, atol=1e-6)
    first = experiment(tmp_path, policies).build()[0].init(jax.random.key(0)).params
    for name in ("row", "column"):
        assert jax.tree.structure(first[name]) == jax.tree.structure(serial.state.params[name])
    record = json.loads((tmp_path / "serial" / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["column/replay/size"] == ROWS * STEPS * 6 / 2
    assert record["column/replay/gradient_steps"] == ROWS * STEPS / 2 * 8 / 32
    assert ("row/replay/size" in record) == (policies is BOTH)


@pytest.mark.slow
def test_own_algorithms_resume_and_load(tmp_path):
    # Without a schedule, the first half does not depend on the number of updates.
    policies = PoliciesConfig(
        MAPPING, agents={"column": dqn(epsilon_start=0.3, epsilon_end=0.3)}, networks=MIXED.networks
    )
    whole = train(tmp_path / "whole", policies)
    for updates in (3, 6):
        parts = train(tmp_path / "parts", policies, updates=updates)
    assert_same(whole.state, parts.state)
    loaded = load_agent(tmp_path / "parts" / "run")
    assert_same(loaded.params, whole.state.params)
    assert loaded.agent.name == "ppo+dqn"
    assert np.isfinite(evaluate(loaded.agent, loaded.params, loaded.source, episodes=2, seed=0).mean_return)


@pytest.mark.slow
def test_frozen_replay_policy_stays(tmp_path):
    train(tmp_path / "first", MIXED)
    path = str(tmp_path / "first" / "run")
    frozen = PoliciesConfig(MAPPING, json.dumps({"column": path}), MIXED.agents, MIXED.networks)
    second = train(tmp_path / "second", frozen)
    assert_same(second.state.params["column"], load_agent(tmp_path / "first" / "run").params["column"])


@pytest.mark.slow
def test_ppo_beside_dqn_learns_the_best_joint_action(tmp_path):
    for name, policies in (("mixed", MIXED), ("both", BOTH)):
        report = train(tmp_path / name, policies, updates=400, num_envs=32, eval_final_episodes=20)
        assert report.evaluation is not None
        assert report.evaluation.agent_returns == {"agent_0": 1.0, "agent_1": 1.0}, name  # of UnequalTeamMatrix


def test_replay_of_policies_outside_devices_is_rejected(tmp_path):
    with pytest.raises(UserError, match="policies that learn from replay.*--replay.memory device"):
        train(tmp_path, MIXED, replay_memory="host")
    with pytest.raises(UserError, match="--learner.when-full block"):
        train(tmp_path, MIXED, plan="single_learner_fine", learner_when_full="drop_oldest", max_policy_lag=1)
    assert not list(tmp_path.glob("run/checkpoints/*"))


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["dedicated_environments", "single_learner_fine"])
def test_own_algorithms_on_two_devices_match_one(tmp_path, plan):
    one = train(tmp_path / "one", MIXED)
    two = train(tmp_path / "two", MIXED, plan=plan, learner_num_devices=2, pool_num_workers=1)
    assert_same(one.state.params, two.state.params, rtol=1e-4, atol=1e-6)
