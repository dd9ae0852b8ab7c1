"""The plan of docs/how_to/custom_plan.md: the documented block runs, and computes the parameters of serial."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.load_plan import load_plan
from jaxsrl.plan.policies import PLANS, REPLAY_PLANS
from jaxsrl.run_plan import run
from tests.support.run_configs import run_config

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def file(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / "how_to" / "custom_plan.md").read_text(), re.M | re.S)
    assert len(blocks) == 1
    assert blocks[0].count("\n") < 40
    path = tmp_path / "two_pools.py"
    path.write_text(blocks[0])
    return path


def trained(directory, plan_name):
    config = run_config(
        name="run",
        directory=str(directory),
        plan=plan_name,
        num_envs=8,
        pool_num_workers=2,
        pool_lanes_per_worker=1,
        rollout_length=8,
        total_env_steps=8 * 8 * 2,
        max_policy_lag=0,
    )
    source = EnvConfig("CartPole-v1").source()
    spec = source.spec()
    agent = make_ppo(PPOConfig(num_epochs=1, num_minibatches=2), spec, NetworkConfig(hidden_sizes=(8,)))
    plan = load_plan(plan_name)(config, Resources.detect())
    return plan, run(plan, agent, source, config, spec=spec, quiet=True)


def test_documented_plan_with_two_pools_matches_serial(tmp_path, file):
    plan, report = trained(tmp_path / "mine", f"{file}:two_pools")
    assert (plan.name, plan.environments.replicas, plan.inference.replicas) == ("two_pools", 2, 2)
    assert report.num_updates == 2
    _, serial = trained(tmp_path / "serial", "serial")
    for mine, reference in zip(jax.tree.leaves(report.state.params), jax.tree.leaves(serial.state.params), strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-4, atol=2e-6)


def rows(page):
    """Returns the names in the first column of the tables of a page."""
    return re.findall(r"^\| `(\w+)` \|", (DOCS / page).read_text(), re.MULTILINE)


def test_documentation_has_a_row_for_every_plan():
    assert rows("concepts/plans.md") == list(PLANS)
    assert rows("lab/plans.md") == [name for name in PLANS if name not in REPLAY_PLANS]  # measured with PPO
