"""Plans whose experience is kept on a node: where that is, what it takes, what crosses the network, and what is refused."""

import pytest

from agents.api import Replay, ReplayConfig
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.errors import UserError
from envpool_bridge.shm.slot_summary import SlotSummaries
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.cluster.protocol.bundles import Bundle, Reserving, bundles_of_replay, placement_error, requested_bundles
from jaxsrl.cluster.protocol.engine import ReplayLostError
from jaxsrl.collect.slot_layout import agent_layout
from jaxsrl.config.parts import ReplayMemoryConfig
from jaxsrl.learner.learning_agent import kept_bytes, replay_bytes
from jaxsrl.machine.lifecycle import exit_on_user_error
from jaxsrl.machine.resources import Node, Resources
from jaxsrl.plan.cost.channel_bytes import bytes_between_nodes, bytes_of_plan
from jaxsrl.plan.fragment import Carries, Processes, Transport
from jaxsrl.plan.passes.apply import add_agent_fragments, local_nodes, place_on_nodes
from jaxsrl.plan.passes.place_hosts import with_hosts_on
from jaxsrl.plan.plan import plan_from_json, plan_to_json
from jaxsrl.plan.policies import PLANS
from jaxsrl.plan.validate import validate_memory, validate_plan, validate_replay_memory
from tests.support.counting_agent import make_counting
from tests.support.run_configs import run_config

GIB = 1 << 30
SPEC = EnvSpec("Vector", ArraySpec((5,), "float32"), DiscreteSpec(4))
NODES = [Node("a", 4, memory_bytes=8 * GIB), Node("b", 4, memory_bytes=8 * GIB), Node("c", 1, memory_bytes=2 * GIB)]
CONFIG = ReplayConfig(
    capacity=4096, batch_size=16, min_size=256, gradient_steps_per_env_step=0.125, priority_exponent=0.6
)
AGENT = make_counting(Replay(CONFIG, sequence_length=2))


def run_of(**changes):
    sizes = {
        "plan": "single_learner_coarse",
        "num_envs": 24,
        "pool_num_workers": 6,
        "rollout_length": 10,
        "cluster_address": "auto",
        "replay_memory": "cluster",
    }
    return run_config(**{**sizes, **changes})


def plan_of(nodes=NODES, num_bytes=GIB, agent=AGENT, **changes):
    run, here = run_of(**changes), Resources(8, "cpu", 1, nodes=tuple(nodes))
    plan = add_agent_fragments(PLANS[run.plan](run, here), agent, run.replay)
    plan = place_on_nodes(run, plan, nodes, 2, replay_bytes=num_bytes)
    validate_plan(plan, here)
    return plan


def test_replay_is_where_no_host_is_if_that_node_has_the_memory():
    plan = plan_of()
    assert plan.environments.nodes == ("a", "b")
    assert (plan.replay.nodes, plan.replay.placement) == (("c",), Processes(1))
    assert plan_of(num_bytes=4 * GIB).replay.nodes == ("a",)  # where a core is left
    transports = {channel.carries: (channel.transport, channel.capacity) for channel in plan.channels}
    assert transports[Carries.SAMPLES] == (Transport.OBJECT_STORE, 4)
    assert transports[Carries.PRIORITIES] == (Transport.OBJECT_STORE, 1)
    assert transports[Carries.TRAJECTORIES][0] is Transport.OBJECT_STORE
    assert plan_from_json(plan_to_json(plan)) == plan
    assert with_hosts_on(plan, ["b", "a"]).replay.nodes == ("c",)  # hosts move, replay stays
    assert plan_of(plan="distributed_replay").replay.nodes == ("c",)


def test_replay_reserves_a_core_and_its_memory():
    run, plan = run_of(), plan_of()
    assert bundles_of_replay(plan, GIB) == (Bundle(1, GIB, "c", what="replay"),)
    assert requested_bundles(run, plan, GIB)[3] == bundles_of_replay(plan, GIB)
    assert bundles_of_replay(plan_of(replay_memory="device"), GIB) == ()
    held = replay_bytes(AGENT, SPEC, 24, 10).held
    assert kept_bytes(run, AGENT, SPEC) == held > 4000 * (5 * 4 + 4 + 4)
    assert kept_bytes(run_of(replay_memory="device"), AGENT, SPEC) == 0
    message = placement_error([bundles_of_replay(plan, GIB)], Reserving(wait_seconds=3.0), NODES, 2.0)
    assert (
        "no room within 3 s (--cluster.placement-timeout-seconds) for 1 replay of 1 cores and 1 GiB of memory"
        in message
    )
    assert "a smaller --agent.replay.capacity" in message


def test_nodes_that_are_started_here_have_a_core_more_for_replay():
    run, without = run_of(cluster_address="local"), run_of(cluster_address="local", replay_memory="device")
    plan = add_agent_fragments(
        PLANS["single_learner_coarse"](run, Resources(8, "cpu", 1)), AGENT, ReplayMemoryConfig("host")
    )
    cores = [nodes[0].num_cores for nodes in (local_nodes(run, plan), local_nodes(without, plan))]
    assert cores[0] == cores[1] + 1


def test_what_crosses_the_network_for_replay_is_counted():
    plan = plan_of()
    layout, held = agent_layout(SPEC, plan.shape, AGENT), replay_bytes(AGENT, SPEC, 24, 10)
    assert held.samples_per_update == 24 * 10 * 2.0 / 16
    sizes = bytes_of_plan(plan, layout, 70, held)
    sent = bytes_between_nodes(plan, sizes)
    summary = SlotSummaries(layout).num_bytes
    assert sizes.summary == summary < layout.slot_bytes
    assert sent.sampling == (held.sample + 16 * 4) * 30 + 2 * summary
    assert sent.env_step == pytest.approx((sent.trajectories + sent.parameters + sent.sampling) / 240)
    assert bytes_between_nodes(plan_of(replay_memory="device"), sizes).sampling == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agent": make_ppo(PPOConfig(), SPEC, NetworkConfig())}, "learns from each trajectory once and stores none"),
        ({"num_bytes": 9 * GIB}, "no node has a core left and 9 GiB of memory for replay .a: 1 cores and 8 GiB, b: 1 cores"),
        ({"nodes": [Node("a", 3), Node("b", 3)]}, "no node has a core left and 1 GiB of memory for replay"),
        ({"plan": "serial"}, "is in the learner's own process: use a --plan with environment processes"),
    ],
)  # fmt: skip
def test_replay_that_cannot_be_on_a_node_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        plan_of(**changes)


def test_replay_node_needs_a_cluster_and_host_storage():
    with pytest.raises(UserError, match=r"use --cluster.address local or auto with it, or --replay.memory host"):
        run_of(cluster_address="none")
    run, here = run_of(), Resources(8, "cpu", 1)
    on_device = add_agent_fragments(PLANS["single_learner_coarse"](run, here), AGENT)
    with pytest.raises(UserError, match="fragment replay is on devices of the learner"):
        place_on_nodes(run, on_device, NODES, 2)


def test_memory_is_looked_for_at_the_node_and_not_here():
    plan, held = plan_of(), replay_bytes(AGENT, SPEC, 24, 10)
    small_here = Resources(8, "cpu", 1, host_memory_bytes=10, nodes=tuple(NODES))
    validate_replay_memory(plan, held, small_here)
    small_there = Resources(8, "cpu", 1, nodes=(*NODES[:2], Node("c", 1, memory_bytes=10)))
    with pytest.raises(UserError, match="the memory of node c"):
        validate_replay_memory(plan, held, small_there)


def test_memory_of_local_nodes_is_looked_for_here():
    plan, held = plan_of(), replay_bytes(AGENT, SPEC, 24, 10)
    local = tuple(Node(node.name, node.num_cores) for node in NODES)
    with pytest.raises(UserError, match="bytes of this machine's memory, of which 10 are free"):
        validate_replay_memory(plan, held, Resources(8, "cpu", 1, host_memory_bytes=10, nodes=local))
    needed = held.held + 300 * 2**20  # with what a checkpoint takes
    validate_replay_memory(plan, held, Resources(8, "cpu", 1, host_memory_bytes=needed, nodes=local))
    with pytest.raises(UserError, match=f"takes {needed:,} bytes of this machine's memory"):
        validate_replay_memory(plan, held, Resources(8, "cpu", 1, host_memory_bytes=needed - 1, nodes=local))
    layout = agent_layout(SPEC, plan.shape, AGENT)
    slots = layout.total_bytes * plan.environments.replicas
    validate_memory(plan, layout, Resources(8, "cpu", 1, shared_memory_bytes=slots, nodes=local))
    with pytest.raises(UserError, match=f"take {slots:,} bytes of shared memory, but {slots - 1:,} are free"):
        validate_memory(plan, layout, Resources(8, "cpu", 1, shared_memory_bytes=slots - 1, nodes=local))


def test_a_run_that_lost_its_replay_exits_with_try_again(capsys):
    @exit_on_user_error
    def lose():
        raise ReplayLostError("replay on node c is lost")

    with pytest.raises(SystemExit) as ended:
        lose()
    assert ended.value.code == 75
    assert "error: replay on node c is lost" in capsys.readouterr().err
