"""Networks with memory under every plan: what they remember is kept, handed on and saved like everything else."""

import functools

import jax
import numpy as np
import pytest

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.envs.registry import make_env
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import RunReport, run
from jaxsrl.training.host_trainable import HostTrainable
from tests.support.run_configs import run_config

NETWORK = NetworkConfig(hidden_sizes=(8,), core="gru", core_size=8, core_layers=2)
AGENT = PPOConfig(learning_rate=1e-3, num_epochs=2, num_minibatches=2, chunk_length=4, burn_in=2)
UPDATES = 6


def train(directory, policy: str, suite: str = "gymnasium", **changes) -> RunReport:
    settings = {
        "name": "run",
        "directory": str(directory),
        "plan": policy,
        "num_envs": 8,
        "pool_num_workers": 2,
        "rollout_length": 8,
        "total_env_steps": 8 * 8 * UPDATES,
        "checkpoint_interval_updates": 0,
        "max_policy_lag": 0,
    }
    config = run_config(**{**settings, **changes})
    source = make_env(EnvConfig("CartPole-v1", suite=suite))
    spec = source.spec()
    agent = make_ppo(AGENT, spec, NETWORK)
    return run(PLANS[policy](config, Resources.detect()), agent, source, config, spec=spec, quiet=True)


def leaves(report: RunReport) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.device_get(report.state))]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Learner states of the serial plan, by suite."""
    return functools.cache(lambda suite: leaves(train(tmp_path_factory.mktemp(suite), "serial", suite)))


@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        pytest.param("single_learner_fine", {}, marks=pytest.mark.slow),
        ("single_learner_coarse", {"pool_lanes_per_worker": 1}),
        pytest.param("multiple_learners", {"learner_num_devices": 2}, marks=pytest.mark.slow),
        pytest.param("central", {"learner_num_replicas": 2}, marks=pytest.mark.slow),
        pytest.param("device_only", {"learner_num_devices": 2}, marks=pytest.mark.slow),
    ],
)
def test_a_network_with_memory_learns_the_same_under_every_plan(tmp_path, reference, policy, changes):
    suite = "jax" if policy == "device_only" else "gymnasium"
    found = train(tmp_path, policy, suite, **changes)
    for mine, expected in zip(leaves(found), reference(suite), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "lag"),
    [
        pytest.param("serial", 1, marks=pytest.mark.slow),
        ("single_learner_fine", 1),
        pytest.param("single_learner_coarse", 0, marks=pytest.mark.slow),
        pytest.param("device_only", 0, marks=pytest.mark.slow),
    ],
)
def test_recurrent_run_resumes_bit_for_bit(tmp_path, policy, lag):
    suite = "jax" if policy == "device_only" else "gymnasium"
    lanes = {"pool_lanes_per_worker": 1} if policy == "single_learner_coarse" else {}
    whole = train(tmp_path / "whole", policy, suite, max_policy_lag=lag, **lanes)
    for updates in (3, UPDATES):
        resumed = train(tmp_path / "parts", policy, suite, max_policy_lag=lag, total_env_steps=8 * 8 * updates, **lanes)
    for mine, expected in zip(leaves(resumed), leaves(whole), strict=True):
        np.testing.assert_array_equal(mine, expected)


def test_merged_inference_rejects_recurrent_network(tmp_path, monkeypatch):
    monkeypatch.setattr(HostTrainable, "__init__", lambda *arguments: pytest.fail("the run began"))
    with pytest.raises(UserError, match="carries state between steps"):
        train(tmp_path, "single_learner_fine", inference_batching="merged", pool_num_workers=2, pool_lanes_per_worker=2)
    assert not list(tmp_path.iterdir())
