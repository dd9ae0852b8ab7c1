"""The learner's side of environment hosts, with hosts that are threads of this process."""

import concurrent.futures
import contextlib
import dataclasses
import pickle
import threading
import time

import gymnasium
import jax
import numpy as np
import pytest

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.probes.single_agent import MatchObservation
from envpool_bridge.envs.seeding import episode_seed
from envpool_bridge.errors import UserError, WorkerError
from envpool_bridge.options import SupervisorOptions
from envpool_bridge.spec.tree import leaves
from jaxsrl.cluster.hosts.collector import ClusterCollector
from jaxsrl.cluster.protocol.engine import HostLostError
from jaxsrl.collect.collector import CollectorConfig
from jaxsrl.envs.registry import make_env
from jaxsrl.machine.resources import Node, Resources
from jaxsrl.plan.passes.place_hosts import place_hosts
from jaxsrl.plan.policies import PLANS
from tests.support.cluster_audit import audit_cluster
from tests.support.collecting import RESET, ROWS, SECONDS, STEPS, collect, collect_locally
from tests.support.journal import journal_in
from tests.support.run_configs import run_config
from tests.support.thread_engine import ThreadEngine

NODES = {"one": 4, "two": 4}


def run_of(lag, env_source=None, hosts=2, nodes=NODES, **options):
    """(CollectorConfig on a cluster, the same on this machine, parameters of versions 0, 1, ...)."""
    run = run_config(
        num_envs=ROWS,
        pool_num_workers=2,
        pool_lanes_per_worker=1,
        rollout_length=STEPS,
        max_policy_lag=lag,
        total_env_steps=1,
    )
    source = env_source or make_env(EnvConfig("CartPole-v1"))
    spec = source.spec()
    agent = make_ppo(PPOConfig(num_minibatches=1), spec, NetworkConfig(hidden_sizes=(8,)))
    local = PLANS["single_learner_fine"](run, Resources(4, "cpu", 1))
    plan = place_hosts(local, [Node(name, cores) for name, cores in nodes.items()], hosts)
    config = CollectorConfig(source, spec, plan, agent, 7, 0, jax.random.key(1), **options)
    init = jax.jit(lambda seed: agent.init(jax.random.key(seed)).params)
    return config, dataclasses.replace(config, plan=local), [jax.device_get(init(seed)) for seed in range(6)]


@contextlib.contextmanager
def cluster_source(config, nodes=NODES):
    engine = ThreadEngine(nodes)
    source = ClusterCollector(config, engine)
    try:
        yield source, engine
    finally:
        source.close()
        engine.close()


@pytest.mark.parametrize("lag", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_two_hosts_collect_what_one_machine_does_to_the_bit(lag):
    config, local, params = run_of(lag)
    with cluster_source(config) as (source, engine):
        source.publish(0, params[0])
        source.start(RESET)
        first = source.first_observation(lambda: False)
        found = collect(source, params, 4)
        totals = source.totals()
    wanted = collect_locally(local, params, 4)
    np.testing.assert_array_equal(leaves(first)[0], wanted[0][0][0])
    for mine, reference in zip(found, wanted, strict=True):
        for one, other in zip(mine, reference, strict=True):
            np.testing.assert_array_equal(one, other)
    assert [host.node for host in engine.hosts] == ["one", "two"]
    assert totals["cluster/one/env_steps"] >= 4 * STEPS * ROWS // 2
    assert totals["cluster/hosts_lost"] == 0


def test_slots_are_used_in_order_of_their_requests():
    config, local, params = run_of(1)
    with cluster_source(config) as (source, engine):
        source.publish(0, params[0])
        source.start(RESET)
        slots = [call for host in source._hosts for call in host.pending[:2]]
        assert not concurrent.futures.wait(slots, SECONDS).not_done
        in_order = engine.wait
        engine.wait = lambda calls, timeout_seconds: in_order(calls, timeout_seconds)[::-1]
        found = collect(source, params, 4)
        host = source._hosts[0]
        for sequence in (host.next_sequence - 1, host.next_sequence + config.plan.shape.num_slots):
            with pytest.raises(RuntimeError, match=f"host 0 sent slot {sequence}: expected {host.next_sequence} to"):
                host.receive(sequence, host._newest)
        early = host.next_sequence + 1
        host.receive(early, host._newest)
        with pytest.raises(RuntimeError, match=f"host 0 sent slot {early}"):
            host.receive(early, host._newest)
    for mine, reference in zip(found, collect_locally(local, params, 4), strict=True):
        for one, other in zip(mine, reference, strict=True):
            np.testing.assert_array_equal(one, other)


def test_unsent_slots_of_a_lost_host_are_collected_again(tmp_path):
    config, _, params = run_of(1, journal=journal_in(tmp_path))
    _, local, _ = run_of(1)
    with cluster_source(config) as (source, engine):
        source.publish(0, params[0])
        source.start(RESET)
        found = collect(source, params, 2)
        engine.kill_node("two")
        found += collect(source, params, 3, first=2)
        assert source.totals()["cluster/hosts_lost"] == 1
    kept, lost = slice(0, ROWS // 2), slice(ROWS // 2, ROWS)
    for mine, reference in zip(found, collect_locally(local, params, 5), strict=True):
        for one, other in zip(mine, reference, strict=True):
            np.testing.assert_array_equal(one[:, kept], other[:, kept])
    (broken,) = [sequence for sequence, arrays in enumerate(found) if not arrays[6][0, lost].any()]
    assert broken >= 2
    before = found[broken - 1]
    observation, is_first, _, reward, _, truncated = found[broken][:6]
    np.testing.assert_array_equal(observation[0, lost], before[0][-1, lost])  # goes on from what the learner saw
    assert is_first[1, lost].all()
    assert not (reward[0, lost] != 0).any()
    ended = before[4][-1, lost] | before[5][-1, lost] | ~before[6][-1, lost]
    np.testing.assert_array_equal(truncated[0, lost], ~ended)
    begun = sum(arrays[1][1:, lost].sum(0) for arrays in found[:broken])
    for row, episode in zip(range(ROWS)[lost], begun, strict=True):
        env = gymnasium.make("CartPole-v1")
        np.testing.assert_array_equal(observation[1, row], env.reset(seed=episode_seed(7, row, int(episode) + 1))[0])
        env.close()
    assert engine.hosts[-1].node == "one"
    audited = audit_cluster(tmp_path)
    assert audited.is_clean
    assert (audited.hosts_followed, audited.consumed) == (1, 5 * STEPS * 2)


@pytest.mark.slow
def test_host_lost_before_its_first_slot_starts_again():
    config, local, params = run_of(0)
    with cluster_source(config) as (source, engine):
        source.publish(0, params[0])
        source.start(RESET)
        engine.hosts[1].kill()
        found = collect(source, params, 2)
        assert engine.hosts[-1].node == "two"  # where room is reserved for it
    for mine, reference in zip(found, collect_locally(local, params, 2), strict=True):
        for one, other in zip(mine, reference, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_host_of_a_dead_node_waits_for_its_bundle_to_move():
    config, _, params = run_of(0)
    with cluster_source(config) as (source, engine):
        source.publish(0, params[0])
        source.start(RESET)
        collect(source, params, 1)
        engine.silent.add("two")
        engine.hosts[1].kill()
        assert source.acquire(1.0) is None
        assert len(engine.hosts) == 2  # nothing was started on a node that does not answer
        engine.kill_node("two")  # now the cluster has seen it
        collect(source, params, 1, first=1)
        assert engine.hosts[-1].node == "one"
        assert source.totals()["cluster/hosts_lost"] == 1


def test_a_source_of_some_hosts_has_their_rows_of_the_run():
    config, local, params = run_of(0)
    engine = ThreadEngine(NODES)
    source = ClusterCollector(config, engine, range(1, 2))
    try:
        source.publish(0, params[0])
        source.start(RESET)
        found = collect(source, params, 2)
    finally:
        source.close()
        engine.close()
    assert [host.number for host in engine.hosts] == [1]
    for mine, reference in zip(found, collect_locally(local, params, 2), strict=True):
        for one, other in zip(mine, reference, strict=True):
            np.testing.assert_array_equal(one, other[:, ROWS // 2 :])


def test_host_auditor_finds_changed_lost_and_doubled_slots(tmp_path):
    config, _, params = run_of(0, journal=journal_in(tmp_path))
    with cluster_source(config) as (source, _):
        source.publish(0, params[0])
        source.start(RESET)
        collect(source, params, 2)
    assert audit_cluster(tmp_path).is_clean
    path = tmp_path / "learner-4.journal"
    whole = path.read_bytes()
    record = len(whole) // (2 * STEPS)
    for damaged, wrong in [
        (whole[:record] + whole, "duplicated"),
        (whole[record:], "lost"),
        (whole[:record] + bytes([whole[record] ^ 64]) + whole[record + 1 :], "unknown"),
        (whole[:16] + bytes([whole[16] ^ 1]) + whole[17:], "torn"),
    ]:
        path.write_bytes(damaged)
        found = audit_cluster(tmp_path)
        assert not found.is_clean
        assert getattr(found, wrong) > 0, wrong


def test_host_sends_no_more_slots_than_a_ring_holds():
    config, _, params = run_of(1)
    with cluster_source(config) as (source, engine):
        source.publish(0, params[0])
        source.start(RESET)
        assert source.acquire(SECONDS) == 0
        source.publish(1, params[1])
        assert source.acquire(SECONDS) == 1
        credits = config.plan.shape.num_slots
        assert [host.calls.count("next_slot") for host in engine.hosts] == [credits] * 2
        source.release(0)
        assert [host.calls.count("next_slot") for host in engine.hosts] == [credits + 1] * 2


def test_host_lost_too_often_ends_the_run_with_its_name():
    config, _, params = run_of(0, supervision=SupervisorOptions(max_restarts=0))
    with cluster_source(config) as (source, engine):
        source.publish(0, params[0])
        source.start(RESET)
        engine.hosts[1].kill()
        with pytest.raises(HostLostError, match=r"environment host 1 \(rows 4 to 7\) on node two was lost more than 0"):
            source.acquire(SECONDS)
        lost = []
        source._on_loss = lost.append  # which stops the run, so that it saves
        engine.hosts[0].kill()
        assert source.acquire(SECONDS) is None
        assert [str(error).partition(" (")[0] for error in lost] == ["environment host 0"]


def test_a_host_that_does_not_answer_is_ended_and_followed():
    config, _, params = run_of(0, supervision=SupervisorOptions(step_timeout_seconds=0.3))
    with cluster_source(config) as (source, engine):
        source.publish(0, params[0])
        source.start(RESET)
        collect(source, params, 1)
        silent = engine.hosts[1]
        silent.host.stats = lambda: wait_until(lambda: silent.gone)
        deadline = time.monotonic() + SECONDS
        while not silent.gone:
            source.acquire(0.05)  # a learner that waits; nothing is released
            assert time.monotonic() < deadline
        assert source.totals()["cluster/hosts_lost"] == 1
        assert engine.hosts[-1].number == 1


def wait_until(condition):
    deadline = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return {}


@pytest.mark.slow
def test_lost_host_waits_for_a_node_until_the_deadline():
    options = SupervisorOptions(start_timeout_seconds=0.5)
    config, _, params = run_of(0, nodes={"one": 2, "two": 2}, supervision=options)
    with cluster_source(config, {"one": 2, "two": 2}) as (source, engine):
        source.publish(0, params[0])
        source.start(RESET)
        collect(source, params, 1)
        engine.kill_node("two")
        with pytest.raises(
            HostLostError, match=r"host 1 .* after 0.5 s .* no node has room for it \(cores of the nodes: one: 2\)"
        ):
            source.acquire(SECONDS)
        engine.alive.append(Node("two again", 2))
        assert collect(source, params, 2, first=1)
        assert engine.hosts[-1].node == "two again"


class Raises(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        raise ValueError("the wheel came off")


@pytest.mark.slow
def test_environment_error_at_a_host_has_its_traceback():
    config, _, params = run_of(0, GymnasiumSource(Raises))
    with cluster_source(config) as (source, _):
        source.publish(0, params[0])
        source.start(RESET)
        with pytest.raises(WorkerError, match=r"the wheel came off") as caught:
            source.acquire(SECONDS)
        assert "in step" in str(caught.value)


def test_environments_that_cannot_be_sent_to_nodes_are_rejected():
    config, _, _ = run_of(0)
    lock = threading.Lock()
    source = GymnasiumSource(lambda: lock and MatchObservation())
    with pytest.raises(UserError, match="cannot be sent to worker processes .*lock"):
        ClusterCollector(dataclasses.replace(config, env_source=source), ThreadEngine(NODES))


def test_a_slot_is_not_copied_into_the_pickle_that_carries_it():
    memory = np.zeros(1 << 20, np.uint8)
    buffers = []
    pickled = pickle.dumps((3, memory), protocol=5, buffer_callback=buffers.append)
    assert len(pickled) < 300
    assert [buffer.raw().nbytes for buffer in buffers] == [1 << 20]
