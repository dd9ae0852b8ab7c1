"""Self-play on environment hosts of a local Ray cluster: the same slots, games and parameters as on one machine."""

import json

import jax
import pytest

from tests.integration.ray_marks import RAY_MARKS
from tests.integration.test_self_play import POOL, UPDATES, experiment
from tests.support.slot_watch import SlotWatch, trees_equal

pytest.importorskip("ray")

pytestmark = RAY_MARKS


@pytest.fixture(scope="module")
def cluster():
    from jaxsrl.cluster.ray.local_cluster import LocalCluster

    started = LocalCluster(2, cores_per_node=4)
    yield started
    started.close()


def train(directory, **changes):
    """Trains, and compares the slots of every version; returns the final state and the members of the slots by version."""
    settings = {"pool_num_workers": 2, "pool_lanes_per_worker": 1, **changes}
    watch = SlotWatch(POOL.snapshot_every)
    report = experiment(directory, **settings).train(quiet=True, callbacks=[watch])
    watch.check_changes(UPDATES)
    return jax.device_get(report.state), watch.members


@pytest.mark.parametrize("plan_name", ["single_learner_fine", "single_learner_coarse"])
def test_hosts_play_the_members_that_slots_name(cluster, tmp_path, plan_name):
    """Opponents decide rewards. Only the same opponents, in every step of every host, give the same parameters."""
    alone, members = train(tmp_path / "alone", plan=plan_name)
    hosts, members_of_hosts = train(tmp_path / "hosts", plan=plan_name, cluster_address="auto", cluster_num_hosts=2)
    assert members_of_hosts == members
    assert trees_equal(hosts, alone)
    fragments = json.loads((tmp_path / "hosts" / "run" / "plan.json").read_text())["fragments"]
    assert fragments[0]["nodes"] == ["node1", "node2"]
