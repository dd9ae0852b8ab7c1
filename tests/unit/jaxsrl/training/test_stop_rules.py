"""Budgets of gradient steps: the env steps that they take, and agents that have none."""

import pytest

from agents.api import ReplayConfig
from agents.dqn import DQNConfig, make_dqn
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.errors import UserError
from jaxsrl.envs.registry import make_env
from jaxsrl.training.stop_rules import stop_rules, with_gradient_budget
from tests.support.run_configs import run_config

REPLAY = ReplayConfig(capacity=512, batch_size=8, min_size=128, gradient_steps_per_env_step=1 / 32)
SIZES = {"num_envs": 16, "rollout_length": 4}
"""From the third update of 64 env steps on, each takes two gradient steps."""


def make_agent():
    return make_dqn(
        DQNConfig(replay=REPLAY, total_updates=10), make_env("CartPole-v1").spec(), NetworkConfig(hidden_sizes=(4,))
    )


@pytest.mark.parametrize(("gradient_steps", "updates"), [(1, 3), (2, 3), (3, 4), (12, 8), (13, 9)])
def test_gradient_steps_limit_env_steps(gradient_steps, updates):
    config = with_gradient_budget(run_config(gradient_steps=gradient_steps, **SIZES), make_agent())
    assert config.num_updates == updates
    assert len(stop_rules(config)) == 1


def test_env_steps_may_end_before_gradient_steps():
    config = with_gradient_budget(run_config(gradient_steps=5, total_env_steps=64 * 4, **SIZES), make_agent())
    assert config.num_updates == 4
    assert stop_rules(config) == []


def test_agents_without_replay_have_no_gradient_budget():
    ppo = make_ppo(PPOConfig(), make_env("CartPole-v1").spec(), NetworkConfig(hidden_sizes=(4,)))
    assert with_gradient_budget(run_config(), ppo) == run_config()
    with pytest.raises(UserError, match="which agent ppo is not: use --run.total-env-steps instead"):
        with_gradient_budget(run_config(gradient_steps=10), ppo)


def test_gradient_steps_need_the_experience_of_checkpoints():
    with pytest.raises(UserError, match="use --checkpoint.include-replay or --run.total-env-steps instead"):
        with_gradient_budget(run_config(gradient_steps=1, checkpoint_include_replay=False, **SIZES), make_agent())
    without = run_config(checkpoint_include_replay=False, **SIZES)
    assert with_gradient_budget(without, make_agent()) == without


def test_plan_offline_keeps_its_own_budget():
    config = run_config(plan="offline", gradient_steps=5000, checkpoint_include_replay=False)
    assert with_gradient_budget(config, make_agent()) == config
    assert (config.num_updates, run_config(plan="offline").num_updates) == (5, 100)
    assert stop_rules(config) == []
