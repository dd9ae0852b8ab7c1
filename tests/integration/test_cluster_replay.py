"""Replay on a node of a local Ray cluster: the curve is that of replay in the learner's process."""

import contextlib
import dataclasses
import json
import os
import signal
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from agents.api import ReplayConfig
from agents.dqn import DQNConfig, make_dqn
from agents.networks.config import NetworkConfig
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.cluster.protocol.engine import ReplayLostError
from jaxsrl.envs.registry import make_env
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import run
from tests.integration.ray_marks import RAY_MARKS
from tests.integration.test_cluster import ray_processes
from tests.support.journal import journal_in
from tests.support.run_configs import run_config

ray = pytest.importorskip("ray")

pytestmark = RAY_MARKS

UNIFORM = ReplayConfig(capacity=512, batch_size=8, min_size=128, gradient_steps_per_env_step=1 / 32)
PRIORITIZED = dataclasses.replace(UNIFORM, priority_exponent=0.6)
DELAYED = dataclasses.replace(PRIORITIZED, priority_delay=2)


@pytest.fixture(scope="module")
def cluster():
    """Two hosts have a node each, and replay the third."""
    from jaxsrl.cluster.ray.local_cluster import LocalCluster

    with contextlib.closing(LocalCluster(3, cores_per_node=3)) as started:
        yield started


def train(directory, updates=12, replay=UNIFORM, **changes):
    settings = {
        "name": "run",
        "directory": str(directory),
        "plan": "single_learner_coarse",
        "num_envs": 16,
        "pool_num_workers": 2,
        "pool_lanes_per_worker": 1,
        "rollout_length": 4,
        "total_env_steps": 16 * 4 * updates,
        "checkpoint_interval_updates": 0,
        "max_policy_lag": 0,
        "replay_memory": "host",
    }
    config = run_config(**{**settings, **changes})
    dqn = DQNConfig(replay=replay, learning_rate=1e-3, n_step=2, double=True, target_update_period=5, total_updates=12)
    source = make_env(EnvConfig("CartPole-v1"))
    spec = source.spec()
    agent = make_dqn(dqn, spec, NetworkConfig(hidden_sizes=(16,)))
    plan = PLANS[config.plan](config, Resources.detect())
    return run(plan, agent, source, config, spec=spec, quiet=True)


def require_same_state(one, other):
    for mine, theirs in zip(jax.tree.leaves(one.state), jax.tree.leaves(other.state), strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


def processes(cluster, name):
    """Process ids of this cluster's actors of a class, which Ray names on their command lines."""
    found = []
    for pid in ray_processes(cluster.directory):
        with contextlib.suppress(OSError):
            if b"ray::" + name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return sorted(found)


def none_is_left(cluster, seconds=20.0):
    deadline = time.monotonic() + seconds
    while (left := processes(cluster, "RayReplay") + processes(cluster, "RayHost")) and time.monotonic() < deadline:
        time.sleep(0.2)
    return not left


ON_NODE = {"cluster_address": "auto", "cluster_num_hosts": 2, "replay_memory": "cluster"}
CASES = [
    (0, UNIFORM, "single_learner_coarse"),
    (0, PRIORITIZED, "distributed_replay"),
    (1, DELAYED, "single_learner_fine"),
]


@pytest.mark.parametrize(("lag", "replay", "plan_name"), CASES, ids=["uniform", "prioritized", "delayed"])
def test_remote_replay_matches_one_machine_and_resumes(cluster, tmp_path, lag, replay, plan_name):
    how = {"max_policy_lag": lag, "replay": replay, "plan": plan_name}
    alone = train(tmp_path / "alone", **how)
    train(tmp_path / "there", updates=4, **how, **ON_NODE)
    train(tmp_path / "there", updates=8, **how)  # on one machine
    there = train(tmp_path / "there", **how, **ON_NODE)
    assert there.num_updates == alone.num_updates == 12
    require_same_state(there, alone)
    assert there.metrics == alone.metrics
    fragments = json.loads((there.directory / "plan.json").read_text())["fragments"]
    (kept,) = [fragment for fragment in fragments if fragment["kind"] == "replay"]
    (node,) = kept["nodes"]
    record = json.loads((there.directory / "metrics.jsonl").read_text().splitlines()[-1])
    print({name: value for name, value in record.items() if name.startswith("cluster/")})
    assert record[f"cluster/{node}/samples_per_second"] > 0.0
    assert none_is_left(cluster)


def kill_when(cluster, name, directory, after):
    """Kills an actor of this class once a record says that more updates have been done; in a thread."""
    killed = []

    def kill():
        deadline = time.monotonic() + 300.0
        records = Path(directory) / "run" / "metrics.jsonl"
        while time.monotonic() < deadline and not killed:
            lines = records.read_text().splitlines() if records.exists() else []
            found = processes(cluster, name)
            if found and lines and json.loads(lines[-1])["update"] > after:
                os.kill(found[0], signal.SIGKILL)
                killed.append(found[0])
            time.sleep(0.02)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    return thread, killed


LONG = {
    "updates": 400,
    "replay": DELAYED,
    "max_policy_lag": 1,
    "metrics_interval_seconds": 0.1,
    "checkpoint_interval_updates": 20,
}


def test_killed_replay_ends_run_that_resumes_bit_for_bit(cluster, tmp_path):
    alone = train(tmp_path / "alone", **LONG)
    killing, killed = kill_when(cluster, "RayReplay", tmp_path / "there", after=30)
    begun = time.monotonic()
    with pytest.raises(ReplayLostError, match="replay on node .* is lost with what it held"):
        train(tmp_path / "there", **LONG, **ON_NODE)
    killing.join(60.0)
    assert killed
    assert time.monotonic() - begun < 120.0
    assert none_is_left(cluster)
    saved = max(
        int(path.name) for path in (tmp_path / "there" / "run" / "checkpoints").iterdir() if path.name.isdigit()
    )
    assert 20 <= saved < 400
    there = train(tmp_path / "there", **LONG, **ON_NODE)
    assert there.num_updates == alone.num_updates == 400
    require_same_state(there, alone)


def test_killed_host_inserts_every_step_once(cluster, tmp_path, monkeypatch):
    from jaxsrl.cluster.collectors import ClusterCollectors
    from tests.support.cluster_audit import audit_cluster

    journal = tmp_path / "journal"
    make_collector = ClusterCollectors.make_collector
    monkeypatch.setattr(
        ClusterCollectors,
        "make_collector",
        lambda self, config: make_collector(self, dataclasses.replace(config, journal=journal_in(journal))),
    )
    killing, killed = kill_when(cluster, "RayHost", tmp_path, after=30)
    report = train(tmp_path, **LONG, **ON_NODE)
    killing.join(60.0)
    assert killed
    assert report.num_updates == 400
    record = json.loads((report.directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["cluster/hosts_lost"] == 1
    found = audit_cluster(journal)
    print(found)
    assert found.consumed == 2 * 400 * 4
    assert found.is_clean
    assert found.hosts_followed == 1


def test_unsaved_remote_experience_is_collected_again(cluster, tmp_path):
    train(tmp_path, updates=6, checkpoint_include_replay=False, **ON_NODE)
    report = train(tmp_path, updates=8, checkpoint_include_replay=False, **ON_NODE)
    (checkpoint,) = [path for path in (tmp_path / "run" / "checkpoints").iterdir() if path.name.endswith("8")]
    assert report.num_updates == 8
    assert not any("replay" in name for path in checkpoint.rglob("*.npz") for name in np.load(path))
    record = json.loads((report.directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["replay/size"] == 2 * 64


def test_remote_replay_rejects_insufficient_node_memory(cluster, tmp_path):
    huge = dataclasses.replace(UNIFORM, capacity=900_000_000)
    with pytest.raises(UserError, match="no node has a core left and .* of memory for replay"):
        train(tmp_path, replay=huge, cluster_placement_timeout_seconds=1.0, **ON_NODE)


def test_a_node_that_dies_with_replay_on_it_ends_the_run(cluster, tmp_path):
    removed = []

    def remove():
        records, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 300.0
        while time.monotonic() < deadline and not removed:
            if records.exists() and records.read_text():
                fragments = json.loads((tmp_path / "run" / "plan.json").read_text())["fragments"]
                kept = next(one for one in fragments if one["kind"] == "replay")
                hosts = next(one for one in fragments if one["kind"] == "environment")
                assert kept["nodes"][0] not in hosts["nodes"]
                cluster.remove_node(kept["nodes"][0])
                removed.append(time.monotonic())
            time.sleep(0.05)

    removing = threading.Thread(target=remove, daemon=True)
    removing.start()
    with pytest.raises(ReplayLostError, match="is lost with what it held"):
        train(tmp_path, **{**LONG, "updates": 100_000, "checkpoint_interval_updates": 0}, **ON_NODE)
    removing.join(60.0)
    print("seconds from the node's death to the run's end:", time.monotonic() - removed[0])
    assert time.monotonic() - removed[0] < 100.0
    assert none_is_left(cluster)
