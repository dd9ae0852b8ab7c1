import dataclasses
import sys

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.cluster.placement import place_run
from jaxsrl.cluster.ray.engine import node_names, nodes_of
from jaxsrl.machine.resources import Node, Resources
from jaxsrl.metrics.cluster_traffic import NodeTraffic, traffic_totals, traffic_values
from jaxsrl.plan.cost.channel_bytes import PlanBytes, bytes_between_nodes
from jaxsrl.plan.fragment import Carries, Transport
from jaxsrl.plan.passes.place_hosts import assign_nodes, place_hosts
from jaxsrl.plan.plan import plan_from_json, plan_to_json
from jaxsrl.plan.policies import PLANS
from jaxsrl.plan.validate import validate_plan
from tests.support.run_configs import run_config

NODES = [Node("a", 8), Node("b", 8), Node("c", 8)]
HERE = Resources(8, "cpu", 4, nodes=tuple(NODES))


def plan_of(policy, nodes=NODES, hosts=3, **changes):
    run = run_config(**{"num_envs": 24, "pool_num_workers": 6, "pool_lanes_per_worker": 1, **changes})
    return place_hosts(PLANS[policy](run, HERE), nodes, hosts)


@pytest.mark.parametrize("policy", ["single_learner_coarse", "single_learner_fine", "distributed_replay", "decoupled"])
def test_only_environments_and_inference_move_to_nodes(policy):
    plan = plan_of(policy)
    validate_plan(plan, HERE)
    assert (plan.num_rows, plan.shape.num_workers) == (24, 2)
    for fragment in plan.fragments:
        expected = ("a", "b", "c") if fragment in (plan.environments, plan.inference) else ()
        assert fragment.nodes == expected
    for channel in plan.channels:
        crosses = channel.carries is Carries.PARAMETERS or channel.source == plan.environments.name
        crosses = crosses and channel.carries is not Carries.OBSERVATIONS
        assert (channel.transport is Transport.OBJECT_STORE) == crosses, channel
    assert plan_from_json(plan_to_json(plan)) == plan


def test_hosts_spread_then_go_where_most_cores_are_left():
    nodes = [Node("small", 2), Node("large", 8)]
    assert assign_nodes(nodes, 3, 2) == ("large", "small", "large")
    assert assign_nodes([Node("small", 2), Node("large", 64)], 2, 2) == ("large", "small")
    with pytest.raises(UserError, match="no node has 2 cores left for environment host 5 of 6"):
        assign_nodes(nodes, 6, 2)
    with pytest.raises(UserError, match="there are none"):
        assign_nodes([], 1, 1)


@pytest.mark.parametrize(
    ("policy", "changes", "message"),
    [
        ("serial", {}, "in the learner's own process"),
        (
            "single_learner_coarse",
            {"pool_num_workers": 4},
            "4 environment workers do not divide over 3 hosts: use .* 3",
        ),
        (
            "single_learner_fine",
            {"learner_when_full": "drop_oldest", "max_policy_lag": 2},
            "use --learner.when-full block",
        ),
        ("central", {"learner_gradients": "asynchronous"}, "use --learner.gradients synchronous"),
    ],
)
def test_what_cannot_be_on_nodes_is_refused(policy, changes, message):
    with pytest.raises(UserError, match=message):
        plan_of(policy, **changes)


def test_plans_with_nodes_that_are_not_there_are_refused():
    plan = plan_of("single_learner_coarse")
    with pytest.raises(UserError, match="is on c, which the cluster does not have"):
        validate_plan(plan, dataclasses.replace(HERE, nodes=tuple(NODES[:2])))
    environments = dataclasses.replace(plan.environments, nodes=("a", "b"))
    short = dataclasses.replace(plan, fragments=(environments, *plan.fragments[1:]))
    with pytest.raises(UserError, match="needs a node for each of 3 replicas: got 2"):
        validate_plan(short, HERE)


def test_network_bytes_are_slots_and_parameters():
    plan = plan_of("single_learner_coarse", nodes=[Node("a", 4), Node("b", 2)], rollout_length=10)
    sent = bytes_between_nodes(plan, PlanBytes((), slot=1000, slots=0, params=70))
    assert (sent.trajectories, sent.parameters) == (3000, 140)
    assert sent.env_step == pytest.approx(3140 / 240)


def test_nodes_of_one_name_are_numbered_if_they_have_cores():
    def node(name, number, **resources):
        return {"NodeName": name, "NodeID": number, "Resources": resources}

    alive = [node("host", "2", CPU=4.0), node("host", "1", CPU=8.0, GPU=2.0, memory=5.0), node("head", "0", memory=1.0)]
    assert node_names(alive) == {"head": "0", "host": "1", "host#2": "2"}
    assert nodes_of(alive) == (Node("host", 8, 2, 5), Node("host#2", 4))


def test_a_record_says_what_each_node_sent_and_how_late():
    before = {"a": NodeTraffic(env_steps=100, bytes=1000, slots=2, lag_sum=2.0)}
    after = {"a": NodeTraffic(env_steps=400, bytes=5000, slots=4, lag_sum=5.0)}
    totals = {
        **traffic_totals(after),
        "cluster/parameters/bytes": 60.0,
        "cluster/hosts_lost": 1.0,
        "learner/updates": 9.0,
    }
    gained = {name: value - traffic_totals(before).get(name, 0.0) for name, value in totals.items()}
    assert traffic_values(totals, gained, 2.0) == {
        "cluster/a/env_steps_per_second": 150.0,
        "cluster/a/bytes_per_second": 2000.0,
        "cluster/a/policy_lag": 1.5,
        "cluster/parameters/bytes_per_second": 30.0,
        "cluster/hosts_lost": 1.0,
    }
    assert traffic_values({"learner/updates": 9.0}, {"learner/updates": 9.0}, 2.0) == {}


@pytest.mark.parametrize("kind", ["local", "auto"])
def test_without_ray_the_message_names_what_to_install(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    run = run_config(num_envs=24, pool_num_workers=6, pool_lanes_per_worker=1, cluster_address=kind)
    with (
        pytest.raises(UserError, match=r'pip install "jaxsrl\[ray\]"'),
        place_run(run, PLANS["single_learner_coarse"](run, HERE), HERE),
    ):
        pytest.fail("it was placed")
