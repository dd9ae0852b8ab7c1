"""Runs on a cluster that is lost while they train, with hosts that are threads of this process."""

import contextlib
import dataclasses

import pytest

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from jaxsrl import run_plan
from jaxsrl.cluster.placement import Placement
from jaxsrl.cluster.protocol.engine import ClusterLostError, HostLostError, ReplayLostError
from jaxsrl.envs.registry import make_env
from jaxsrl.machine.lifecycle import RequeueError
from jaxsrl.machine.resources import Node, Resources
from jaxsrl.plan.passes.place_hosts import place_hosts
from jaxsrl.plan.policies import PLANS
from jaxsrl.training.callbacks import Callback
from tests.support.run_configs import run_config
from tests.support.thread_engine import ThreadEngine

NODES = {"one": 4, "two": 4}


class Loses(Callback):
    """Loses the cluster after the second update."""

    def __init__(self, engine, error):
        self.engine, self.error, self.reasons = engine, error, []

    def on_update(self, run):
        if run.num_updates == 2:
            self.engine.losses.append(self.error)

    def on_stop(self, run, reason):
        self.reasons.append(reason)


def test_a_run_that_loses_its_cluster_saves(tmp_path, monkeypatch):
    error = ClusterLostError("the head is lost")
    config = run_config(
        name="run", directory=str(tmp_path), num_envs=4, pool_num_workers=2, rollout_length=4, total_env_steps=100_000,
        cluster_address="auto", checkpoint_interval_updates=0, metrics_interval_seconds=100.0,
    )  # fmt: skip
    source = make_env(EnvConfig("CartPole-v1"))
    agent = make_ppo(PPOConfig(num_minibatches=1, num_epochs=1), source.spec(), NetworkConfig(hidden_sizes=(4,)))
    here, nodes = Resources.detect(), tuple(Node(name, cores) for name, cores in NODES.items())
    plan = PLANS["single_learner_fine"](config, here)
    placed, engine = place_hosts(plan, nodes, 2), ThreadEngine(NODES)

    @contextlib.contextmanager
    def place_run(*_):
        resources = dataclasses.replace(here, nodes=nodes)
        yield Placement(placed, resources, lambda store_bytes: contextlib.nullcontext(engine))

    monkeypatch.setattr(run_plan, "place_run", place_run)
    losing = Loses(engine, error)
    with contextlib.closing(engine), pytest.raises(ClusterLostError) as raised:
        run_plan.run(plan, agent, source, config, quiet=True, callbacks=[losing])
    assert raised.value is error
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert int(checkpoint.name) >= 2
    assert losing.reasons == ["SIGUSR1"]  # not "complete"
    assert f"stops: {error}" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize("error", [ClusterLostError, HostLostError, ReplayLostError])
def test_losses_ask_for_the_same_command_again(error):
    assert issubclass(error, RequeueError)
