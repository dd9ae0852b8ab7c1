"""Runs that are cut at random updates, once or several times, end as if they never had been."""

import random

import jax
import numpy as np
import pytest

from agents.api import ReplayConfig
from agents.dqn import DQNConfig, make_dqn
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.envs.registry import make_env
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import run
from tests.support.run_configs import run_config

UPDATES = 24
SOURCE = make_env(EnvConfig("CartPole-v1"))
SPEC = SOURCE.spec()
NETWORK = NetworkConfig(hidden_sizes=(8,))
REPLAY = ReplayConfig(
    capacity=512, batch_size=8, min_size=64, gradient_steps_per_env_step=1 / 32, priority_exponent=0.6
)
AGENTS = {
    "ppo": make_ppo(PPOConfig(num_epochs=1, num_minibatches=2), SPEC, NETWORK),
    "dqn": make_dqn(DQNConfig(replay=REPLAY, total_updates=UPDATES, target_update_period=3), SPEC, NETWORK),
}


def train(directory, name, plan_name, updates):
    config = run_config(
        name="run",
        directory=str(directory),
        plan=plan_name,
        num_envs=8,
        pool_num_workers=2,
        pool_lanes_per_worker=1,
        rollout_length=4,
        total_env_steps=8 * 4 * updates,
        max_policy_lag=1,
        checkpoint_interval_updates=0,
    )
    plan = PLANS[plan_name](config, Resources.detect())
    return run(plan, AGENTS[name], SOURCE, config, spec=SPEC, quiet=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "plan_name"), [("ppo", "serial"), ("ppo", "single_learner_fine"), ("dqn", "single_learner_coarse")]
)
def test_resume_at_random_updates_is_bit_exact(tmp_path, name, plan_name):
    draw = random.Random(plan_name)
    whole = train(tmp_path / "whole", name, plan_name, UPDATES)
    expected = jax.device_get(whole.state)
    for number in range(20):
        cuts = sorted(draw.sample(range(1, UPDATES), draw.choice([1, 1, 2])))
        for updates in (*cuts, UPDATES):
            resumed = train(tmp_path / str(number), name, plan_name, updates)
        for one, other in zip(jax.tree.leaves(jax.device_get(resumed.state)), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"cut at {cuts}")
        assert resumed.metrics == whole.metrics, cuts
