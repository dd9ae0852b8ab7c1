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

from agents.dqn import make_dqn
from agents.dqn_config import DQNConfig
from agents.networks.config import NetworkConfig
from agents.replay_config import ReplayConfig
from envpool_bridge.adapters.environment import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.cluster.engine import ReplayLostError
from jaxsrl.config import RunConfig
from jaxsrl.dataflow.policies import POLICIES
from jaxsrl.dataflow.resources import Resources
from jaxsrl.environments import source_of
from jaxsrl.runtime.run import run
from tests.integration.ray_marks import RAY_MARKS

ray = pytest.importorskip("ray")

pytestmark = RAY_MARKS

UNIFORM = ReplayConfig(capacity=512, batch_size=8, min_size=128, samples_per_insert=0.25)
PRIORITISED = dataclasses.replace(UNIFORM, priority_exponent=0.6)
DELAYED = dataclasses.replace(PRIORITISED, priority_delay=2)


@pytest.fixture(scope="module")
def cluster():
    from jaxsrl.cluster.ray_local import LocalCluster

    started = LocalCluster(2, cores_per_node=6)
    try:
        yield started
    finally:
        started.close()


def train(directory, updates=12, replay=UNIFORM, **changes):
    settings = {
        "name": "run",
        "directory": str(directory),
        "policy": "single_learner_coarse",
        "num_envs": 16,
        "num_env_workers": 2,
        "lanes_per_worker": 1,
        "rollout_length": 4,
        "env_steps": 16 * 4 * updates,
        "checkpoint_every_updates": 0,
        "max_policy_lag": 0,
        "replay_on": "host",
    }
    config = RunConfig(**{**settings, **changes})
    dqn = DQNConfig(replay=replay, learning_rate=1e-3, num_steps=2, double=True, target_period=5, total_updates=12)
    source = source_of(EnvConfig("CartPole-v1"))
    spec = source.spec()
    agent = make_dqn(dqn, spec, NetworkConfig(hidden_sizes=(16,)))
    plan = POLICIES[config.policy](config, Resources.detect())
    return run(plan, agent, source, config, spec=spec, quiet=True)


def require_same_state(one, other):
    for mine, theirs in zip(jax.tree.leaves(one.state), jax.tree.leaves(other.state), strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


def processes(name):
    """Process ids of actors of this class, which Ray names on their command lines."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and b"ray::" + name.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return sorted(found)


def none_is_left(seconds=20.0):
    deadline = time.monotonic() + seconds
    while (processes("RayReplay") or processes("RayHost")) and time.monotonic() < deadline:
        time.sleep(0.2)
    return not processes("RayReplay") and not processes("RayHost")


ON_NODE = {"cluster": "auto", "cluster_replay": True}
CASES = [(0, UNIFORM, "single_learner_coarse"), (0, PRIORITISED, "distributed_replay"), (1, DELAYED, "single_learner_fine")]


@pytest.mark.parametrize(("lag", "replay", "policy"), CASES, ids=["uniform", "prioritised", "delayed"])
def test_the_curve_is_that_of_one_machine_and_runs_go_on_here_and_there_to_the_bit(
    cluster, tmp_path, lag, replay, policy
):
    how = {"max_policy_lag": lag, "replay": replay, "policy": policy}
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
    assert none_is_left()
