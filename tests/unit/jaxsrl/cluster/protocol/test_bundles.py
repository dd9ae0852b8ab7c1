"""What a run reserves of a cluster: arithmetic by hand."""

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.cluster.protocol.bundles import SERVERS, Bundle, Reserving, bundles_of, match_bundles, placement_error
from jaxsrl.cluster.ray.placement_group import placed_on
from jaxsrl.machine.resources import Node, Resources
from jaxsrl.plan.passes.apply import num_hosts, place_on_nodes
from jaxsrl.plan.passes.place_hosts import preferred_nodes, with_hosts_on
from jaxsrl.plan.policies import PLANS
from tests.support.run_configs import run_config

NODES = (Node("a", 9), Node("b", 8), Node("c", 4))


def plan_of(policy, **changes):
    run = run_config(num_envs=24, pool_num_workers=6, pool_lanes_per_worker=1, plan=policy, **changes)
    return place_on_nodes(run, PLANS[policy](run, Resources(8, "cpu", 4)), NODES, 3)


def test_every_host_is_a_bundle_of_cores_and_memory():
    assert bundles_of(plan_of("single_learner_coarse")) == (Bundle(2, 0, "a"), Bundle(2, 0, "b"), Bundle(2, 0, "c"))
    fine = bundles_of(plan_of("single_learner_fine"), host_gib=0.5)  # with a core for the server
    assert fine[0].resources() == {"CPU": 3.0, "memory": float(1 << 29)}
    assert Bundle(3).resources() == {"CPU": 3.0}


@pytest.mark.parametrize(
    ("spreading", "expected"),
    [
        ("spread", ("a", "b", "c")),
        ("pack", ("a", "a", "a")),
        ("strict_spread", ("a", "b", "c")),
        ("strict_pack", ("a", "a", "a")),
    ],
)
def test_hosts_are_predicted_for_an_empty_cluster(spreading, expected):
    assert preferred_nodes(NODES, 3, 3, spreading) == expected
    assert plan_of("single_learner_fine", cluster_placement=spreading).environments.nodes == expected


@pytest.mark.parametrize(
    ("spreading", "hosts", "cores", "advice"),
    [
        ("strict_spread", 3, 5, "--cluster.placement spread"),
        ("strict_pack", 4, 3, "--cluster.placement pack"),
        ("pack", 4, 4, None),
        ("pack", 6, 4, "larger nodes"),
    ],
)
def test_plan_too_large_for_the_cluster_is_rejected(spreading, hosts, cores, advice):
    if advice is None:
        assert preferred_nodes(NODES, hosts, cores, spreading) == ("a", "a", "b", "b")
        return
    with pytest.raises(UserError, match=f"{hosts} environment hosts of {cores} cores each.*a: 9 cores.*{advice}"):
        preferred_nodes(NODES, hosts, cores, spreading)


def test_host_takes_a_bundle_on_its_preferred_node():
    assert match_bundles(["b", "a", "a"], ["a", "b", "c"]) == (1, 0, 2)
    assert match_bundles(["", "", "", ""], ["z", "y", "z", "y"]) == (1, 3, 0, 2)  # neighbors share nodes
    assert match_bundles(["q", "y"], ["y", "z"]) == (1, 0)


def test_hosts_move_with_their_inference_and_without_learner():
    moved = with_hosts_on(plan_of("single_learner_fine"), ["c", "c", "a"])
    assert moved.environments.nodes == moved.inference.nodes == ("c", "c", "a")
    assert moved.learner.nodes == ()


def test_placement_error_names_request_resources_and_remedy():
    how = Reserving("strict_spread", 5.0)
    said = placement_error([[Bundle(3, 2 << 30)] * 4], how, [Node("a", 8, memory_bytes=1 << 30)], 2.0)
    for words in ("within 5 s", "4 environment hosts of 3 cores and 2 GiB", "a: 8 cores and 1 GiB", "2 cores are free"):
        assert words in said
    for words in ("wait until", "--cluster.placement spread", "--cluster.host-memory-gib", "--pool.num-workers"):
        assert words in said


def test_a_refusal_names_all_that_was_asked_for_together():
    asked = [[Bundle(3)] * 4, [Bundle(1, gpus=1, what=SERVERS)] * 2]
    said = placement_error(asked, Reserving("spread"), [Node("a", 8, 1), Node("b", 8)], 2.0)
    assert "4 environment hosts of 3 cores each, on as many nodes as possible, and at the same time" in said
    assert "for 2 inference servers of 1 cores and 1 GPU each; it has a: 8 cores and 1 GPUs, b: 8 cores and 0" in said
    assert said.endswith("fewer --cluster.num-inference-servers")


def test_a_bundle_of_a_dead_node_is_nowhere():
    table = {"state": "RESCHEDULING", "bundles_to_node_id": {0: "x", 1: ""}}
    assert placed_on(table) == {0: "x"}
    assert placed_on({**table, "state": "REMOVED"}) == {}


def test_hosts_are_as_many_for_every_learner_process():
    run = run_config(cluster_address="auto")
    assert [num_hosts(run, nodes, 2) for nodes in (1, 2, 3, 5)] == [2, 2, 2, 4]
    assert num_hosts(run_config(cluster_address="auto", cluster_num_hosts=6), 2, 3) == 6
    with pytest.raises(UserError, match="5 environment hosts do not divide over 2 learner processes: use .* 4"):
        num_hosts(run_config(cluster_address="auto", cluster_num_hosts=5), 2, 2)
