"""Plans whose hosts ask servers on other nodes, what these send each other, and what records say of them."""

import numpy as np
import pytest

from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import SlotAccess, allocate_slots
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.cluster.inference.messages import ActingMessages
from jaxsrl.cluster.protocol.bundles import bundles_of, bundles_of_servers
from jaxsrl.machine.resources import Node, Resources
from jaxsrl.metrics.cluster_traffic import traffic_values
from jaxsrl.plan.cost.channel_bytes import bytes_between_nodes, bytes_of_plan
from jaxsrl.plan.fragment import Carries, Devices, Transport
from jaxsrl.plan.passes.apply import local_nodes, place_on_nodes
from jaxsrl.plan.passes.place_hosts import with_hosts_on
from jaxsrl.plan.passes.place_inference import lanes_of_server, server_of_lane, servers_of_hosts
from jaxsrl.plan.plan import plan_from_json, plan_to_json
from jaxsrl.plan.policies import PLANS
from jaxsrl.plan.validate import validate_plan
from tests.support.run_configs import run_config

NODES = [Node("a", 8), Node("b", 8), Node("c", 4)]
SPEC = EnvSpec(
    "Both", {"image": ArraySpec((3, 2, 2), "uint8", frames=3), "speed": ArraySpec((5,), "float32")}, DiscreteSpec(4)
)


def run_of(servers=1, **changes):
    sizes = {"num_envs": 24, "pool_num_workers": 6, "pool_lanes_per_worker": 2, "cluster_address": "auto"}
    return run_config(**{**sizes, "cluster_num_inference_servers": servers, **changes})


def plan_of(servers=1, nodes=NODES, hosts=2, processes=1, **changes):
    run, here = run_of(servers, **changes), Resources(8, "cpu", 4, nodes=tuple(nodes))
    plan = place_on_nodes(run, PLANS[run.plan](run, here), nodes, hosts, processes=processes)
    validate_plan(plan, here)
    return plan


def test_servers_have_own_nodes_and_hosts_have_worker_cores():
    plan = plan_of(2)
    assert plan.calls_servers
    assert plan.environments.nodes == ("a", "b")
    assert plan.inference.nodes == ("a", "b")  # five cores are left on each, four on c
    assert plan.inference.placement == Devices((0,), "cpu")
    assert [bundle.cores for bundle in (*bundles_of(plan), *bundles_of_servers(plan))] == [3, 3, 1, 1]
    transports = {channel.carries: channel.transport for channel in plan.channels}
    assert transports[Carries.OBSERVATIONS] is transports[Carries.ACTIONS] is Transport.CALLS
    assert transports[Carries.PARAMETERS] is transports[Carries.TRAJECTORIES] is Transport.OBJECT_STORE
    assert plan_from_json(plan_to_json(plan)) == plan
    assert with_hosts_on(plan, ["c", "a"]).inference.nodes == ("a", "b")  # hosts move, servers stay


def test_servers_go_where_gpus_are_if_there_are_enough():
    with_gpus = [Node("a", 8), Node("big", 4, 2), Node("small", 8, 1)]
    assert plan_of(3, nodes=with_gpus).inference.nodes == ("big", "small", "big")
    assert plan_of(3, nodes=with_gpus).inference.placement == Devices((0,), "gpu")
    assert [bundle.resources() for bundle in bundles_of_servers(plan_of(3, nodes=with_gpus))] == [
        {"CPU": 1.0, "GPU": 1.0}
    ] * 3
    assert plan_of(4, nodes=with_gpus).inference.placement == Devices((0,), "cpu")


def test_servers_act_on_cpus_if_the_run_asks_for_it():
    plan = plan_of(1, nodes=[Node("a", 8), Node("big", 4, 2)], inference_platform="cpu")
    assert plan.inference.placement == Devices((0,), "cpu")
    assert [bundle.gpus for bundle in bundles_of_servers(plan)] == [0]


def test_lanes_are_shared_by_servers_in_order_over_all_hosts():
    plan = plan_of(3)  # two hosts of six lanes
    assert [lanes_of_server(plan, server) for server in range(3)] == [range(4), range(4, 8), range(8, 12)]
    assert [server_of_lane(plan, lane) for lane in range(12)] == [0] * 4 + [1] * 4 + [2] * 4


def test_servers_of_hosts_are_those_that_act_for_their_lanes():
    plan = plan_of(4)  # two hosts of six lanes, and a server for every three
    assert [servers_of_hosts(plan, range(host, host + 1)) for host in range(2)] == [range(2), range(2, 4)]
    assert servers_of_hosts(plan, range(2)) == range(4)
    assert servers_of_hosts(plan_of(2, hosts=6, nodes=[Node("a", 8)]), range(3, 6)) == range(1, 2)


@pytest.mark.parametrize(
    ("servers", "changes", "message"),
    [
        (1, {"plan": "single_learner_coarse"}, "acts where its environments are: use --plan decoupled"),
        (1, {"plan": "serial"}, "acts where its environments are: use --plan decoupled"),
        (5, {}, "12 lanes of 2 hosts do not divide over 5 inference servers: use --cluster.num-inference-servers 4"),
        (6, {"nodes": [Node("a", 3), Node("b", 3)]}, "no node has a core left for inference server 0 of 6"),
        (3, {"processes": 2}, "3 inference servers do not divide over 2 learner processes.*-servers 4, or 0"),
        (1, {"processes": 2}, "1 inference servers do not divide over 2 learner processes.*-servers 2, or 0"),
        (8, {"processes": 2}, "12 lanes of 2 hosts do not divide over 8 inference servers: .*-servers 6$"),
    ],
)
def test_servers_that_cannot_be_are_refused(servers, changes, message):
    with pytest.raises(UserError, match=message):
        plan_of(servers, **changes)


def test_servers_without_a_cluster_are_refused():
    with pytest.raises(UserError, match="use --cluster.address local or auto with it"):
        run_of(1, cluster_address="none")
    run = run_of(2, cluster_address="local")
    plan = PLANS["single_learner_fine"](run, Resources(8, "cpu", 4))
    nodes = local_nodes(run, plan)
    assert place_on_nodes(run, plan, nodes, len(nodes)).inference.replicas == 2


def test_what_crosses_the_network_is_counted_for_acting_too():
    plan = plan_of(1, rollout_length=10)
    layout = make_layout(SPEC, plan.shape, {"log_prob": ArraySpec((), "float32")})
    sizes = bytes_of_plan(plan, layout, params_bytes=70)
    sent = bytes_between_nodes(plan, sizes)
    observed, chosen = 3 * 2 * 2 + 5 * 4 + 3, 4 + 4 + 4  # frames, a speed and is_first; action, log_prob and version
    assert sizes.channels[0].item == plan.shape.rows_per_lane * observed
    assert sent.acting == 24 * 10 * (observed + chosen)
    assert sent.parameters == 70  # a server, however many hosts
    assert sent.env_step == pytest.approx((sent.trajectories + sent.parameters + sent.acting) / 240)


def test_requests_and_answers_arrive_as_they_were_sent():
    shape = PoolShape(2, 1, 1, 3, 4, 2)
    state = {"h": ArraySpec((2,), "float32"), "n": ArraySpec((), "int32")}
    layout = make_layout(SPEC, shape, {"log_prob": ArraySpec((), "float32")}, state)
    random = np.random.default_rng(0)
    (slot, _) = allocate_slots(layout)
    for frames in slot.frames.values():
        frames[...] = random.integers(0, 100, frames.shape)
    slot.is_first_frames[...] = random.random(slot.is_first_frames.shape) < 0.5
    rows = SlotAccess(layout).act_rows(slot, 2, shape.lane_rows(1))
    messages = ActingMessages(layout)
    memory = {"h": random.random((3, 2), np.float32), "n": np.arange(3, dtype=np.int32)}
    for sent in (memory, None):
        found = messages.read_request(messages.pack_request(5, 7, 11, rows, sent))
        assert (found.life, found.lane, found.step) == (5, 7, 11)
        np.testing.assert_array_equal(found.observation["image"], slot.frames["image"][2:5, 3:6])
        np.testing.assert_array_equal(found.observation["speed"], slot.observation["speed"][2, 3:6])
        np.testing.assert_array_equal(found.is_first, slot.is_first_frames[2:5, 3:6])
        assert (found.agent_state is None) == (sent is None)
        if found.agent_state is not None:
            np.testing.assert_array_equal(found.agent_state["h"], memory["h"])
            np.testing.assert_array_equal(found.agent_state["n"], memory["n"])
        action, extras = np.array([1, 0, 3]), {"log_prob": random.random(3).astype(np.float32)}
        answer = messages.read_answer(messages.pack_answer(9, 11, action, extras, sent))
        assert (answer.version, answer.step) == (9, 11)
        np.testing.assert_array_equal(answer.action, action)
        np.testing.assert_array_equal(answer.extras["log_prob"], extras["log_prob"])
        assert (answer.agent_state is None) == (sent is None)
        if answer.agent_state is not None:
            np.testing.assert_array_equal(answer.agent_state["h"], memory["h"])


def test_a_record_says_what_the_servers_of_each_node_did():
    totals = {
        "cluster/a/requests": 30.0,
        "cluster/a/calls": 10.0,
        "cluster/a/rows": 240.0,
        "cluster/a/queued_seconds": 0.06,
    }
    idle = {"cluster/b/requests": 0.0, "cluster/b/calls": 0.0, "cluster/servers_lost": 2.0}
    assert traffic_values({**totals, **idle}, {**totals, **dict.fromkeys(idle, 0.0)}, 2.0) == {
        "cluster/a/requests_per_second": 15.0,
        "cluster/a/inference_batch_rows": 24.0,
        "cluster/a/inference_wait_ms": pytest.approx(2.0),
        "cluster/b/requests_per_second": 0.0,
        "cluster/servers_lost": 2.0,
    }
