"""Environment hosts that ask inference servers on other nodes, all of them threads of this process."""

import contextlib
import dataclasses
import time

import jax
import numpy as np
import pytest

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from envpool_bridge.options import SupervisorOptions
from jaxsrl.cluster.hosts.collector import ClusterCollector
from jaxsrl.cluster.inference import server as action_server
from jaxsrl.cluster.inference.act_batch import ActingCalls
from jaxsrl.cluster.inference.messages import ActingMessages, Request
from jaxsrl.cluster.protocol.engine import HostLostError
from jaxsrl.collect.collector import CollectorConfig
from jaxsrl.collect.slot_layout import agent_layout
from jaxsrl.envs.registry import make_env
from jaxsrl.machine.resources import Node, Resources
from jaxsrl.plan.passes.place_hosts import place_hosts
from jaxsrl.plan.passes.place_inference import call_servers, place_servers
from jaxsrl.plan.policies import PLANS
from tests.support.collecting import RESET, ROWS, SECONDS, STEPS, collect, collect_locally
from tests.support.run_configs import run_config
from tests.support.serving_engine import ServingEngine

NODES = {"one": 4, "two": 4}


def run_of(lag, servers=1, core="none", gpus=0, **changes):
    """(CollectorConfig on a cluster with servers, the same on this machine, parameters of versions 0, 1, ...)."""
    options = {name: changes.pop(name) for name in ("supervision",) if name in changes}
    sizes = {
        "num_envs": ROWS,
        "pool_num_workers": 2,
        "pool_lanes_per_worker": 1,
        "rollout_length": STEPS,
        "total_env_steps": 1,
    }
    run = run_config(**{**sizes, "max_policy_lag": lag, **changes})
    source = make_env(EnvConfig("CartPole-v1"))
    spec = source.spec()
    network = NetworkConfig(hidden_sizes=(8,), core=core, **({"core_size": 4} if core != "none" else {}))
    agent = make_ppo(PPOConfig(num_minibatches=1), spec, network)
    local = PLANS["single_learner_fine"](run, Resources(4, "cpu", 1))
    nodes = [Node(name, cores, gpus) for name, cores in NODES.items()]
    plan = place_servers(place_hosts(call_servers(local), nodes, 2), nodes, servers)
    config = CollectorConfig(source, spec, plan, agent, 7, 0, jax.random.key(1), **options)
    init = jax.jit(lambda seed: agent.init(jax.random.key(seed)).params)
    return config, dataclasses.replace(config, plan=local), [jax.device_get(init(seed)) for seed in range(6)]


@contextlib.contextmanager
def served(config, hosts=None):
    engine = ServingEngine(NODES)
    source = ClusterCollector(config, engine, hosts)
    try:
        yield source, engine
    finally:
        source.close()
        engine.close()


def require_same(found, wanted):
    assert len(found) == len(wanted)
    for mine, reference in zip(found, wanted, strict=True):
        for one, other in zip(mine, reference, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("lag", "servers", "core"), [pytest.param(0, 1, "gru", marks=pytest.mark.slow), (1, 2, "none")]
)
def test_servers_elsewhere_choose_what_one_here_does_to_the_bit(lag, servers, core):
    config, local, params = run_of(lag, servers, core, pool_lanes_per_worker=2)
    with served(config) as (source, engine):
        source.publish(0, params[0])
        source.start(RESET)
        found = collect(source, params, 4)
        assert [server.calls.count("publish") > 0 for server in engine.servers] == [True] * servers
        assert not any("publish" in host.calls for host in engine.hosts)
        assert all(server.asked >= 4 * STEPS * 2 // servers for server in engine.servers)
    require_same(found, collect_locally(local, params, 4))


@pytest.mark.parametrize("core", ["gru", pytest.param("none", marks=pytest.mark.slow)])
def test_servers_lost_within_slots_change_no_result(core):
    config, local, params = run_of(1, 1, core)
    with served(config) as (source, engine):
        engine.servers[0].dies_at = 2 * (STEPS + 2)  # two lanes ask
        engine.deaths = [2 * STEPS + 3]
        source.publish(0, params[0])
        source.start(RESET)
        found = collect(source, params, 4)
        assert source.totals()["cluster/servers_lost"] == 2
        assert source.totals()["cluster/hosts_lost"] == 0
        assert (len(engine.servers), len(engine.hosts)) == (3, 2)
    require_same(found, collect_locally(local, params, 4))


@pytest.mark.slow
def test_a_host_that_is_lost_is_followed_at_the_servers_too():
    config, local, params = run_of(0, 1, "gru")
    with served(config) as (source, engine):
        source.publish(0, params[0])
        source.start(RESET)
        engine.hosts[1].kill()  # before it sent anything: its successor begins as if nothing had happened
        found = collect(source, params, 3)
        assert source.totals()["cluster/hosts_lost"] == 1
        assert len(engine.servers) == 1
    require_same(found, collect_locally(local, params, 3))


@pytest.mark.slow
def test_server_lost_too_often_ends_the_run_with_its_name():
    config, _, params = run_of(0, supervision=SupervisorOptions(max_restarts=1))
    with served(config) as (source, engine):
        engine.servers[0].dies_at = 3
        engine.deaths = [3]
        source.publish(0, params[0])
        source.start(RESET)
        with pytest.raises(HostLostError, match=r"inference server 0 \(rows 0 to 7\) on node \w+ was lost more than 1"):
            collect(source, params, 3)


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_ended_and_followed():
    config, local, params = run_of(0, supervision=SupervisorOptions(step_timeout_seconds=0.3))
    with served(config) as (source, engine):
        source.publish(0, params[0])
        source.start(RESET)
        found = collect(source, params, 1)
        silent = engine.servers[0]
        silent.server._calls.act = lambda *_: wait_until(lambda: silent.gone)
        found += collect(source, params, 2, first=1)
        assert silent.gone
    require_same(found, collect_locally(local, params, 3))


@pytest.mark.parametrize(
    ("lag", "servers", "core"), [pytest.param(0, 4, "gru", marks=pytest.mark.slow), (1, 2, "none")]
)
def test_learner_processes_share_the_rows_of_one_process(lag, servers, core):
    config, local, params = run_of(lag, servers, core, pool_lanes_per_worker=2)
    each, shares = servers // 2, []
    for process in range(2):
        with served(config, hosts=range(process, process + 1)) as (source, engine):
            assert [server.number for server in engine.servers] == list(range(process * each, (process + 1) * each))
            assert [host.number for host in engine.hosts] == [process]
            engine.servers[-1].dies_at = STEPS + 2 if process == 1 else None  # its successor is of the same process
            source.publish(0, params[0])
            source.start(RESET)
            shares.append(collect(source, params, 3))
            assert source.totals()["cluster/servers_lost"] == process
            assert {server.number for server in engine.servers} == set(range(process * each, (process + 1) * each))
    both = [
        [np.concatenate(leaves, axis=1) for leaves in zip(*sequences, strict=True)]
        for sequences in zip(*shares, strict=True)
    ]
    require_same(both, collect_locally(local, params, 3))


def test_server_with_a_gpu_that_jax_cannot_see_raises(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr("jax.local_devices", without_gpus(jax.local_devices))
    config, _, params = run_of(0, gpus=1)
    with served(config) as (source, engine):
        assert engine.gpus == [1]
        source.publish(0, params[0])
        source.start(RESET)
        with pytest.raises(
            UserError, match=r"server 0 was given a GPU of its node .*VISIBLE_DEVICES='3'.*jax sees none"
        ):
            collect(source, params, 1)


def without_gpus(local_devices):
    def found(*, backend=None):
        if backend == "gpu":
            raise RuntimeError("Unknown backend: 'gpu' requested")
        return local_devices(backend=backend)

    return found


def wait_until(condition):
    deadline = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    raise RuntimeError("ended")


def test_merged_lanes_of_several_hosts_share_calls(monkeypatch):
    monkeypatch.setattr(action_server, "GATHER_SECONDS", 30.0)  # nobody may be missing
    config, _, params = run_of(0, inference_batching="merged")
    with served(config) as (source, engine):
        source.publish(0, params[0])
        source.start(RESET)
        found = collect(source, params, 2)
        stats = engine.servers[0].server.stats().result(SECONDS)
    assert stats["requests"] == 2 * stats["calls"] >= 2 * 2 * STEPS
    assert stats["rows"] == ROWS * stats["calls"]
    assert (found[1][7] == 1).all()  # the version that acted


@pytest.mark.slow
def test_what_the_agent_raises_at_a_server_ends_the_run_with_it():
    config, _, params = run_of(0)
    with served(config) as (source, engine):
        source.publish(0, params[0])
        source.start(RESET)
        collect(source, params, 1)

        def act(*_):
            raise ValueError("the network came off")

        engine.servers[0].server._calls.act = act
        with pytest.raises(ValueError, match="the network came off"):
            collect(source, params, 3, first=1)


@pytest.mark.parametrize("merge", [False, True])
def test_steps_of_the_run_wrap_around_at_32_bits(merge):
    config, _, params = run_of(0, pool_lanes_per_worker=2)
    messages = ActingMessages(agent_layout(config.spec, config.plan.shape, config.agent))
    calls = ActingCalls(config, jax.random.key(1), range(2), messages, jax.devices()[0])
    observation, is_first = np.ones((calls.rows_per_lane, 4), np.float32), np.zeros(calls.rows_per_lane, bool)
    answers = {}
    for step in (5, 2**32 + 5):
        requests = [Request(lane, step, 0, observation, is_first, None) for lane in range(2 if merge else 1)]
        answers[step] = [messages.read_answer(each) for each in calls.act(params[0], 0, requests, merge)]
    for one, other in zip(answers[5], answers[2**32 + 5], strict=True):
        np.testing.assert_array_equal(one.action, other.action)
        np.testing.assert_array_equal(one.extras["behavior_log_prob"], other.extras["behavior_log_prob"])
