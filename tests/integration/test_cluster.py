"""Environment hosts on the nodes of a local Ray cluster: one for all of these tests, since it takes its time to start."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.envs.registry import make_env
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import run
from jaxsrl.training import host_trainable
from tests.integration.ray_marks import RAY_MARKS
from tests.support.cluster_audit import audit_cluster
from tests.support.journal import journal_in
from tests.support.run_configs import run_config

ray = pytest.importorskip("ray")

pytestmark = RAY_MARKS
HOSTS = 3


@pytest.fixture(scope="module")
def cluster():
    from jaxsrl.cluster.ray.local_cluster import LocalCluster

    started = LocalCluster(HOSTS, cores_per_node=4)
    directory = started.directory
    session = ray_processes(directory)
    assert session
    try:
        yield started
    finally:
        started.close()
    deadline = time.monotonic() + 20.0
    while ray_processes(directory) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert ray_processes(directory) == set()
    assert not directory.exists()


def ray_processes(directory):
    """Processes that name the cluster's directory on their command line or in their environment."""
    found = set()
    for pid in {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()} - {os.getpid()}:
        with contextlib.suppress(OSError):
            said = [(Path("/proc") / str(pid) / name).read_bytes() for name in ("environ", "cmdline")]
            if str(directory).encode() in b"".join(said):
                found.add(pid)
    return found


def train(directory, env_steps=None, updates=5, **changes):
    settings = {
        "name": "run",
        "directory": str(directory),
        "plan": "single_learner_coarse",
        "num_envs": 12,
        "pool_num_workers": 3,
        "pool_lanes_per_worker": 1,
        "rollout_length": 8,
        "total_env_steps": env_steps or 12 * 8 * updates,
        "checkpoint_interval_updates": 0,
        "max_policy_lag": 0,
    }
    config = run_config(**{**settings, **changes})
    source = make_env(EnvConfig("CartPole-v1"))
    spec = source.spec()
    agent = make_ppo(PPOConfig(num_epochs=2, num_minibatches=2), spec, NetworkConfig(hidden_sizes=(16,)))
    plan = PLANS[config.plan](config, Resources.detect())
    return run(plan, agent, source, config, spec=spec, quiet=True)


def leaves_of(report):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(report.state)]


@pytest.mark.parametrize("lag", [0, 1])
def test_three_hosts_match_one_machine_and_resume(cluster, tmp_path, lag):
    alone = train(tmp_path / "alone", max_policy_lag=lag)
    hosts = train(tmp_path / "hosts", max_policy_lag=lag, cluster_address="auto", updates=2)
    hosts = train(tmp_path / "hosts", max_policy_lag=lag, cluster_address="auto")
    assert hosts.num_updates == alone.num_updates == 5
    for one, other in zip(leaves_of(hosts), leaves_of(alone), strict=True):
        np.testing.assert_array_equal(one, other)
    assert hosts.metrics == alone.metrics
    fragments = json.loads((hosts.directory / "plan.json").read_text())["fragments"]
    assert fragments[0]["nodes"] == ["node1", "node2", "node3"]
    record = json.loads((hosts.directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["cluster/hosts_lost"] == 0
    assert {f"cluster/node{number}/env_steps_per_second" for number in (1, 2, 3)} <= record.keys()


def test_killed_node_loses_and_duplicates_no_accepted_step(cluster, tmp_path, monkeypatch):
    journals = tmp_path / "journals"
    monkeypatch.setattr(
        host_trainable, "CollectorConfig", partial(host_trainable.CollectorConfig, journal=journal_in(journals))
    )
    records = tmp_path / "run" / "metrics.jsonl"

    def disturb():
        wait_for_record(records, lambda record: record["update"] > 3)
        cluster.remove_node("node2")
        wait_for_record(records, lambda record: record["cluster/hosts_lost"] >= 1)
        cluster.add_node("node4")
        time.sleep(1.0)
        cluster.remove_node("node1")
        wait_for_record(records, lambda record: record.get("cluster/node4/env_steps_per_second", 0.0) > 0.0)
        os.kill(os.getpid(), signal.SIGTERM)

    disturbing = threading.Thread(target=disturb, daemon=True)
    disturbing.start()
    report = train(
        tmp_path,
        total_env_steps=50_000_000,
        max_policy_lag=1,
        cluster_address="auto",
        cluster_num_hosts=3,
        metrics_interval_seconds=0.5,
    )
    disturbing.join(60.0)
    assert report.stopped_by == "SIGTERM"
    found = audit_cluster(journals)
    print(found)
    assert found.is_clean
    assert found.hosts_followed >= 2
    assert found.consumed == report.num_updates * 8 * 3
    for name in ("node1", "node2"):
        cluster.add_node(name)


def wait_for_record(path, wanted):
    deadline = time.monotonic() + 240.0
    while time.monotonic() < deadline:
        if path.exists():
            lines = [line for line in path.read_text().splitlines() if line.endswith("}")]
            if lines and wanted(json.loads(lines[-1])):
                return
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    pytest.fail("no record was as wanted in time")


@pytest.mark.parametrize("experiment", ["ppo_cartpole", "impala_cartpole"])
def test_cartpole_learns_through_three_local_hosts(experiment, tmp_path):
    root = Path(__file__).parents[2]
    flags = [
        "--cluster.address",
        "local",
        "--cluster.num-hosts",
        "3",
        "--pool.num-workers",
        "3",
        "--run.num-envs",
        "96",
    ]
    flags += ["--plan", "single_learner_coarse", "--run.directory", str(tmp_path), "--run.name", "run"]
    done = subprocess.run(
        [sys.executable, str(root / "experiments" / f"{experiment}.py"), *flags],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    evaluated = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert evaluated["mean_return"] >= 475.0
