"""Learner processes whose environments are at hosts of a cluster: which hosts, rows and devices are whose."""

import dataclasses
import re

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.cluster.learners.shared_cluster import bundles_near
from jaxsrl.cluster.learners.shared_metrics import add_totals, summable_totals
from jaxsrl.cluster.learners.synchronized_collector import SynchronizedCollector
from jaxsrl.machine.resources import Node, Resources
from jaxsrl.plan.fragment import Devices
from jaxsrl.plan.passes.apply import place_on_nodes
from jaxsrl.plan.passes.learner_processes import replicas_of, resources_over, servers_of, shares_of, split_learner
from jaxsrl.plan.passes.place_inference import lanes_of_server
from jaxsrl.plan.policies import PLANS
from jaxsrl.plan.validate import validate_plan
from tests.support.run_configs import change_run, run_config

HOST = Resources(4, "cpu", 2, 2, 1 << 30)
NODES = (Node("a", 8), Node("b", 8), Node("c", 8), Node("d", 8))
RUN = run_config(num_envs=48, pool_num_workers=4, learner_num_devices=4, pool_lanes_per_worker=1)
SERVED = {"cluster_address": "auto"}


def planned(policy, hosts=4, processes=2, **changes):
    run = change_run(RUN, plan=policy, **changes)
    plan = PLANS[policy](run, resources_over(HOST, processes))
    return split_learner(place_on_nodes(run, plan, NODES, hosts, processes=processes), processes, HOST.num_devices)


@pytest.mark.parametrize("policy", ["single_learner_fine", "single_learner_coarse", "multiple_learners"])
def test_each_process_learns_from_the_rows_of_its_hosts(policy):
    plan = planned(policy)
    assert plan.environments.nodes == plan.inference.nodes == ("a", "b", "c", "d")
    assert (plan.num_rows, plan.shape.num_rows) == (48, 12)
    assert plan.learner.placement == Devices((0, 1, 2, 3))
    assert [replicas_of(plan, process, 2) for process in (0, 1)] == [range(0, 2), range(2, 4)]
    validate_plan(plan, dataclasses.replace(resources_over(HOST, 2), nodes=NODES))


def test_learner_processes_have_the_lanes_of_one_process():
    one = PLANS["single_learner_fine"](change_run(RUN, learner_num_devices=2), HOST)
    plan = planned("single_learner_fine", hosts=2, learner_num_devices=2)
    assert plan.shape.rows_per_lane == one.shape.rows_per_lane
    assert plan.learner.placement == Devices((0, 2))


@pytest.mark.parametrize(
    ("policy", "hosts", "changes", "says"),
    [
        ("serial", 4, {}, "in the learner's own process"),
        ("distributed_replay", 4, {"learner_num_devices": 2}, "it keeps experience for replay"),
        ("decoupled", 4, {"learner_num_devices": 2}, "inference has devices of its own"),
        ("single_learner_fine", 1, {"learner_num_devices": 2}, "use --cluster.num-hosts 2"),
        ("single_learner_fine", 4, {"learner_num_devices": 3}, "use --learner.num-devices"),
        ("single_learner_coarse", 4, {"learner_num_devices": 8}, "use --learner.num-devices 4 or less"),
        (
            "multiple_learners",
            4,
            {**SERVED, "cluster_num_inference_servers": 3},
            "3 inference servers do not divide over 2 learner",
        ),
        ("single_learner_coarse", 4, {**SERVED, "cluster_num_inference_servers": 2}, "acts where its environments are"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_what_to_change(policy, hosts, changes, says):
    with pytest.raises(UserError, match=re.escape(says)):
        planned(policy, hosts, **changes)


def test_hosts_would_best_be_on_the_nodes_of_their_learners():
    plan = planned("single_learner_fine")
    assert nodes_near(plan, ["d", ""]) == [["d", "d", "c", "d"], []]
    assert nodes_near(plan, ["", ""]) == [["a", "b", "c", "d"], []]


def nodes_near(plan, learners_at):
    return [[bundle.node for bundle in bundles] for bundles in bundles_near(plan, 0.0, learners_at)]


@pytest.mark.parametrize("policy", ["single_learner_fine", "multiple_learners"])
def test_each_process_has_servers_for_its_own_hosts(policy):
    plan = planned(policy, **SERVED, cluster_num_inference_servers=2)
    assert plan.calls_servers
    assert plan.inference.replicas == len(plan.inference.nodes) == 2
    assert [servers_of(plan, process, 2) for process in (0, 1)] == [range(0, 1), range(1, 2)]
    for process in (0, 1):
        lanes = {lane for server in servers_of(plan, process, 2) for lane in lanes_of_server(plan, server)}
        hosts = replicas_of(plan, process, 2)
        assert lanes == set(range(hosts.start * plan.shape.num_lanes, hosts.stop * plan.shape.num_lanes))
    validate_plan(plan, dataclasses.replace(resources_over(HOST, 2), nodes=NODES))
    shares = shares_of(plan, 2)
    assert [(share.servers, share.server_nodes) for share in shares] == [
        ((0,), plan.inference.nodes[:1]),
        ((1,), plan.inference.nodes[1:]),
    ]
    hosts, servers = nodes_near(plan, ["d", "b"])
    assert (hosts, servers) == (["d", "d", "b", "b"], ["d", "b"])
    assert nodes_near(plan, ["", "b"])[1] == [plan.inference.nodes[0], "b"]


def test_plan_placed_for_one_process_is_rejected_for_two():
    run = change_run(RUN, **SERVED, cluster_num_inference_servers=1)
    placed = place_on_nodes(run, PLANS["multiple_learners"](run, resources_over(HOST, 2)), NODES, 4)
    with pytest.raises(
        UserError, match=r"1 inference servers do not divide over 2 .* --cluster.num-inference-servers 2"
    ):
        split_learner(placed, 2, HOST.num_devices)


def test_without_servers_no_process_has_one():
    plan = planned("single_learner_fine")
    assert [servers_of(plan, process, 2) for process in (0, 1)] == [range(0), range(0)]
    assert [(share.servers, share.server_nodes) for share in shares_of(plan, 2)] == [((), ())] * 2


def test_counters_of_other_processes_add_up_and_means_do_not():
    mine = {"cluster/a/bytes": 5.0, "env/restarts_total": 1.0, "learner/wait_seconds": 3.0, "cluster/hosts_lost": 0.0}
    theirs = {"cluster/a/bytes": 7.0, "cluster/b/bytes": 2.0, "env/restarts_total": 2.0, "learner/wait_seconds": 9.0}
    told = summable_totals({**theirs, "cluster/hosts_lost": 1.0})
    assert "learner/wait_seconds" not in told
    assert add_totals(mine, [told, {}]) == {
        "cluster/a/bytes": 12.0,
        "cluster/b/bytes": 2.0,
        "env/restarts_total": 3.0,
        "learner/wait_seconds": 3.0,
        "cluster/hosts_lost": 1.0,
    }


class Waits:
    """A source whose rows do not come."""

    def acquire(self, timeout_seconds):
        return None


class LostError(Exception):
    pass


def test_process_waiting_for_rows_sees_failure_of_another(monkeypatch):
    def failed():
        raise LostError

    now = [0.0]
    monkeypatch.setattr("jaxsrl.cluster.learners.synchronized_collector.time.monotonic", lambda: now[0])
    source = SynchronizedCollector(Waits(), None, 0, 4, failed)  # pyright: ignore
    now[0] = 0.5
    assert source.acquire(0.2) is None
    now[0] = 1.5
    with pytest.raises(LostError):
        source.acquire(0.2)
