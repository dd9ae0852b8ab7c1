"""One agent file under every plan: at lag 0 and the same total rows they compute the same parameters."""

import functools
import inspect
import itertools
import json
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import agents.ppo
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.envs.registry import make_env
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.plan import plan_from_json
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import RunReport, run
from jaxsrl.training.host_trainable import HostTrainable
from tests.support.run_configs import run_config

# Sums over rows are taken in another order where rows are cut otherwise; ten updates of Adam carry that on.
TOLERANCE = {"rtol": 1e-4, "atol": 2e-6}
UPDATES = 10


def train(directory: Path, plan_name: str, suite: str = "gymnasium", **changes) -> RunReport:
    settings = {
        "name": "run",
        "directory": str(directory),
        "plan": plan_name,
        "num_envs": 16,
        "pool_num_workers": 4,
        "pool_lanes_per_worker": 1,
        "rollout_length": 8,
        "total_env_steps": 16 * 8 * UPDATES,
        "checkpoint_interval_updates": 0,
        "max_policy_lag": 0,
    }
    config = run_config(**{**settings, **changes})
    source = make_env(EnvConfig("CartPole-v1", suite=suite))
    spec = source.spec()
    agent = make_ppo(
        PPOConfig(learning_rate=1e-3, num_epochs=2, num_minibatches=2), spec, NetworkConfig(hidden_sizes=(16,))
    )
    plan = PLANS[plan_name](config, Resources.detect())
    return run(plan, agent, source, config, spec=spec, quiet=True)


@pytest.fixture(scope="module")
def serial_parameters(tmp_path_factory):
    """Parameters of the reference after ten updates, by suite."""
    return functools.cache(
        lambda suite: jax.device_get(train(tmp_path_factory.mktemp(suite), "serial", suite).state.params)
    )


FAST = [
    ("single_learner_coarse", {"pool_num_workers": 2, "learner_num_devices": 4}),
    ("decoupled", {"learner_num_devices": 2, "inference_num_devices": 2, "inference_num_servers": 2}),
    ("multiple_learners", {"learner_num_devices": 2}),
    ("central", {"learner_num_devices": 4}),
]
# The same plans with fewer or more devices, servers or workers.
SLOW = [
    ("single_learner_fine", {}),
    ("central", {"learner_num_replicas": 2}),
    ("dedicated_environments", {"pool_num_workers": 1}),
    ("single_learner_fine", {"learner_num_devices": 4}),
    ("single_learner_coarse", {"pool_num_workers": 2}),
    ("decoupled", {}),
    ("multiple_learners", {}),
    ("multiple_learners", {"learner_num_devices": 4}),
    ("central", {}),
    ("central", {"learner_num_devices": 2}),
    ("central", {"learner_num_devices": 2, "inference_platform": "cpu"}),
    ("multiple_learners", {"learner_num_devices": 2, "inference_platform": "cpu"}),
]
CASES = [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]


@pytest.mark.parametrize(
    ("plan_name", "changes"), CASES, ids=lambda value: value if isinstance(value, str) else str(value)
)
def test_every_plan_matches_serial(tmp_path, serial_parameters, plan_name, changes):
    report = train(tmp_path, plan_name, **changes)
    assert report.num_updates == UPDATES
    for mine, reference in zip(
        jax.tree.leaves(report.state.params), jax.tree.leaves(serial_parameters("gymnasium")), strict=True
    ):
        np.testing.assert_allclose(mine, reference, **TOLERANCE)
    plan = plan_from_json(json.loads((report.directory / "plan.json").read_text()))
    assert (plan.name, plan.num_rows) == (plan_name, 16)
    (provenance,) = json.loads((report.directory / "provenance.json").read_text())
    assert provenance["versions"]["jax"] == jax.__version__


@pytest.mark.slow
@pytest.mark.parametrize(
    "num_devices", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)]
)
def test_device_loop_matches_serial(tmp_path, serial_parameters, num_devices):
    report = train(tmp_path, "device_only", "jax", learner_num_devices=num_devices)
    for mine, reference in zip(
        jax.tree.leaves(report.state.params), jax.tree.leaves(serial_parameters("jax")), strict=True
    ):
        np.testing.assert_allclose(mine, reference, **TOLERANCE)


def test_the_agents_source_names_no_placement():
    source = inspect.getsource(agents.ppo)
    for word in ("device", "mesh", "pmap", "pmean", "axis_name", "process", *PLANS):
        assert word not in source.lower().split(), word


def test_device_only_rejects_environments_without_jax(tmp_path):
    with pytest.raises(UserError, match="--env.suite jax"):
        train(tmp_path, "device_only")
    assert not list(tmp_path.iterdir())


def test_parameter_server_rejects_indivisible_update(tmp_path, monkeypatch):
    monkeypatch.setattr(HostTrainable, "__init__", lambda *arguments: pytest.fail("the run began"))
    source = make_env(EnvConfig("CartPole-v1"))
    spec = source.spec()
    agent = make_ppo(PPOConfig(num_minibatches=2), spec, NetworkConfig(hidden_sizes=(16,)))._replace(
        gradient_steps=None
    )
    config = run_config(directory=str(tmp_path), plan="central", num_envs=16, pool_num_workers=4, rollout_length=8)
    with pytest.raises(UserError, match="a parameter server needs an update that is cut into gradient steps"):
        run(PLANS["central"](config, Resources.detect()), agent, source, config, spec=spec, quiet=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "plan_name",
    ["central", *(pytest.param(name, marks=pytest.mark.slow) for name in ("decoupled", "multiple_learners"))],
)
def test_several_pools_resume_bit_for_bit(tmp_path, plan_name):
    changes = {"max_policy_lag": 1, "learner_num_devices": 2, "inference_num_servers": 2}
    whole = train(tmp_path / "whole", plan_name, **changes)
    for updates in (3, UPDATES):
        resumed = train(tmp_path / "parts", plan_name, total_env_steps=16 * 8 * updates, **changes)
    for one, other in zip(jax.tree.leaves(whole.state), jax.tree.leaves(resumed.state), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert resumed.metrics == whole.metrics


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_async_replicas_bound_staleness_and_count_drops(tmp_path, replicas):
    report = train(
        tmp_path,
        "central",
        num_envs=12,
        pool_num_workers=3,
        total_env_steps=12 * 8 * UPDATES,
        learner_num_replicas=replicas,
        learner_gradients="asynchronous",
        learner_max_gradient_staleness=2,
        max_policy_lag=1,
    )
    assert report.num_updates == UPDATES
    record = json.loads((report.directory / "metrics.jsonl").read_text().splitlines()[-1])
    pushed = record["server/applied_gradients"] + record["server/dropped_gradients"]
    assert pushed >= replicas * UPDATES * 4  # 2 epochs x 2 minibatches a trajectory
    assert record["server/staleness_max"] <= 2
    assert record["policy/lag_max"] <= 2  # one more than between updates: replicas ahead of the slowest
    assert np.isfinite(record["loss/total"])


@pytest.mark.slow
def test_async_run_resumes_from_its_checkpoint(tmp_path):
    settings = {"learner_gradients": "asynchronous", "learner_num_replicas": 2, "max_policy_lag": 1}
    first = train(tmp_path, "central", total_env_steps=16 * 8 * 4, **settings)
    second = train(tmp_path, "central", **settings)
    assert (first.num_updates, second.num_updates) == (4, UPDATES)
    assert second.metrics["episode/count"] >= first.metrics["episode/count"]


@pytest.mark.slow  # of the learner alone: test_device_only.py
def test_device_loop_resumes_bit_for_bit(tmp_path):
    whole = train(tmp_path / "whole", "device_only", "jax", learner_num_devices=2)
    for updates in (3, UPDATES):
        resumed = train(
            tmp_path / "parts", "device_only", "jax", learner_num_devices=2, total_env_steps=16 * 8 * updates
        )
    for one, other in zip(jax.tree.leaves(whole.state), jax.tree.leaves(resumed.state), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.slow
def test_slow_learner_takes_newest_and_counts_drops(tmp_path, monkeypatch):
    from jaxsrl.learner.loop import Learner

    publish = Learner.publish

    def slowly(self):
        time.sleep(0.05)
        publish(self)

    monkeypatch.setattr(Learner, "publish", slowly)
    report = train(tmp_path, "single_learner_fine", max_policy_lag=3, learner_when_full="drop_oldest")
    record = json.loads((report.directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert report.num_updates == UPDATES
    assert record["trajectories/dropped_total"] > 0
    assert record["policy/lag_max"] <= 3
    monkeypatch.undo()
    again = train(
        tmp_path, "single_learner_fine", max_policy_lag=3, learner_when_full="drop_oldest", total_env_steps=16 * 8 * 15
    )
    assert again.num_updates == 15


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan_name", "changes"),
    [
        ("single_learner_fine", {}),
        ("multiple_learners", {"learner_num_devices": 2}),
        ("dedicated_environments", {"pool_num_workers": 1}),
    ],
    ids=str,
)
def test_buffered_trajectories_are_reused_while_waiting(tmp_path, monkeypatch, plan_name, changes):
    from jaxsrl.collect.pool import PoolCollector

    acquire, looks = PoolCollector.acquire, itertools.count()

    def seldom(self, timeout_seconds):  # as from environments that are slower than the learner
        return None if next(looks) % 5 else acquire(self, timeout_seconds)

    monkeypatch.setattr(PoolCollector, "acquire", seldom)
    keeps = {
        **changes,
        "max_policy_lag": 3,
        "learner_when_full": "drop_oldest",
        "learner_trajectory_buffer_size": 4,
        "learner_sample_reuse": 3,
    }
    report = train(tmp_path, plan_name, **keeps)
    record = json.loads((report.directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert report.num_updates == UPDATES
    assert record["trajectories/reused_total"] > 0
    assert record["policy/lag_max"] <= 3
    channel = plan_from_json(json.loads((report.directory / "plan.json").read_text())).channels[2]
    assert (channel.kept, channel.reuses) == (4, 3)
    monkeypatch.undo()
    assert train(tmp_path, plan_name, **keeps, total_env_steps=16 * 8 * 15).num_updates == 15
