"""Inference servers on the nodes of a local Ray cluster, which the environment hosts of other nodes ask for actions."""

import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path

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
from jaxsrl.run_plan import run
from tests.integration.ray_marks import RAY_MARKS
from tests.integration.test_cluster import ray_processes
from tests.support.run_configs import run_config

ray = pytest.importorskip("ray")

pytestmark = RAY_MARKS


@pytest.fixture(scope="module")
def cluster():
    from jaxsrl.cluster.ray.local_cluster import LocalCluster

    with contextlib.closing(LocalCluster(2, cores_per_node=6)) as started:
        yield started


def train(directory, env_steps=None, updates=5, core="none", **changes):
    settings = {
        "name": "run",
        "directory": str(directory),
        "plan": "decoupled",
        "inference_platform": "cpu",
        "num_envs": 16,
        "pool_num_workers": 2,
        "pool_lanes_per_worker": 2,
        "rollout_length": 8,
        "total_env_steps": env_steps or 16 * 8 * updates,
        "checkpoint_interval_updates": 0,
        "max_policy_lag": 0,
    }
    config = run_config(**{**settings, **changes})
    source = make_env(EnvConfig("CartPole-v1"))
    spec = source.spec()
    network = NetworkConfig(hidden_sizes=(16,), core=core, **({"core_size": 8} if core != "none" else {}))
    agent = make_ppo(
        PPOConfig(num_epochs=2, num_minibatches=2, chunk_length=4 if core != "none" else None), spec, network
    )
    plan = PLANS[config.plan](config, Resources.detect())
    return run(plan, agent, source, config, spec=spec, quiet=True)


def require_same_state(one, other):
    for mine, theirs in zip(jax.tree.leaves(one.state), jax.tree.leaves(other.state), strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


@pytest.mark.parametrize(("lag", "servers", "core"), [(0, 1, "none"), (1, 2, "gru")])
def test_remote_servers_match_one_machine_and_resume(cluster, tmp_path, lag, servers, core):
    alone = train(tmp_path / "alone", max_policy_lag=lag, core=core)
    through = {"max_policy_lag": lag, "core": core, "cluster_address": "auto", "cluster_num_inference_servers": servers}
    served = train(tmp_path / "served", updates=2, **through)
    served = train(tmp_path / "served", **through)
    assert served.num_updates == alone.num_updates == 5
    require_same_state(served, alone)
    assert served.metrics == alone.metrics
    fragments = json.loads((served.directory / "plan.json").read_text())["fragments"]
    (inference,) = [fragment for fragment in fragments if fragment["kind"] == "inference"]
    assert inference["replicas"] == len(inference["nodes"]) == servers
    record = json.loads((served.directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert (record["cluster/hosts_lost"], record["cluster/servers_lost"]) == (0, 0)


def test_server_reports_declared_gpu_that_jax_lacks(cluster, tmp_path):
    if any(device.platform == "gpu" for device in jax.local_devices()):
        pytest.skip("the GPU that the node declares is there")
    cluster.add_node("with-gpu", gpus=1)
    try:
        with pytest.raises(UserError) as refused:
            train(
                tmp_path,
                plan="single_learner_fine",
                inference_platform="auto",
                cluster_address="auto",
                cluster_num_hosts=2,
                cluster_num_inference_servers=1,
            )
    finally:
        cluster.remove_node("with-gpu")
        deadline = time.monotonic() + 60.0  # in which the cluster sees that it is gone
        while time.monotonic() < deadline and sum(node["Alive"] for node in ray.nodes()) > 3:
            time.sleep(0.2)
    for words in ("inference server 0 was given a GPU", "CUDA_VISIBLE_DEVICES='0'", "jax sees none there"):
        assert words in str(refused.value)
    fragments = json.loads((tmp_path / "run" / "plan.json").read_text())["fragments"]
    (inference,) = [fragment for fragment in fragments if fragment["kind"] == "inference"]
    assert inference["nodes"] == ["with-gpu"]
    assert inference["placement"]["platform"] == "gpu"


def server_processes(cluster):
    """Process ids of this cluster's servers, which Ray names on their command lines."""
    found = []
    for pid in ray_processes(cluster.directory):
        with contextlib.suppress(OSError):
            if b"ray::RayServer" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return sorted(found)


def test_killed_servers_do_not_change_the_curve(cluster, tmp_path):
    updates = 24
    alone = train(tmp_path / "alone", updates=updates, max_policy_lag=1, core="gru")
    killed = []

    def kill():
        deadline = time.monotonic() + 300.0
        records = tmp_path / "served" / "run" / "metrics.jsonl"
        for after in (2, 10):
            while time.monotonic() < deadline:
                lines = records.read_text().splitlines() if records.exists() else []
                found = [pid for pid in server_processes(cluster) if pid not in killed]
                if found and lines and json.loads(lines[-1])["update"] > after:
                    os.kill(found[0], signal.SIGKILL)
                    killed.append(found[0])
                    break
                time.sleep(0.05)

    killing = threading.Thread(target=kill, daemon=True)
    killing.start()
    served = train(
        tmp_path / "served",
        updates=updates,
        max_policy_lag=1,
        core="gru",
        cluster_address="auto",
        cluster_num_inference_servers=2,
        metrics_interval_seconds=0.2,
    )
    killing.join(60.0)
    assert len(killed) == 2
    records = [json.loads(line) for line in (served.directory / "metrics.jsonl").read_text().splitlines()]
    record = records[-1]
    assert (record["cluster/hosts_lost"], record["cluster/servers_lost"]) == (0, 2)
    node = next(name for name in record if name.endswith("/requests_per_second"))
    print({name: value for name, value in record.items() if name.startswith("cluster/")})
    assert any(one.get(node, 0.0) > 0.0 for one in records)  # servers tell once a second, and records are more
    require_same_state(served, alone)
    deadline = time.monotonic() + 20.0
    while server_processes(cluster) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert server_processes(cluster) == []
