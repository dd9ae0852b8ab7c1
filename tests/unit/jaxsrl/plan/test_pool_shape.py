"""Rows divide over workers and lanes, and workers share lanes where an accelerator acts."""

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.fragment import Carries
from jaxsrl.plan.policies import PLANS, single_learner_fine
from tests.support.run_configs import run_config


@pytest.mark.parametrize(
    ("platform", "settings", "expected"),
    [
        ("gpu", {}, 6),
        ("cpu", {}, 1),
        ("gpu", {"inference_platform": "cpu"}, 1),
        ("gpu", {"pool_workers_per_lane": 2}, 2),
        ("gpu", {"cluster_address": "local"}, 1),  # its hosts divide the workers
        ("gpu", {"inference_batching": "merged"}, 1),  # which workers are ready decides
        ("gpu", {"pool_lanes_per_worker": 1}, 3),  # two lanes, of which one steps while the other waits
        ("gpu", {"distributed_coordinator": "h:1", "distributed_num_processes": 2, "distributed_process_id": 0}, 1),
    ],
)
def test_workers_share_lanes_where_an_accelerator_acts(platform, settings, expected):
    plan = single_learner_fine(run_config(pool_num_workers=6, num_envs=120, **settings), Resources(8, platform, 2))
    assert plan.shape.workers_per_lane == expected
    assert plan.channel(Carries.OBSERVATIONS).capacity == 6 // expected * plan.shape.lanes_per_worker


def test_workers_of_each_server_share_lanes():
    run = run_config(pool_num_workers=6, num_envs=120, inference_num_servers=2, inference_num_devices=1)
    assert PLANS["decoupled"](run, Resources(8, "gpu", 2)).shape.workers_per_lane == 3


def test_workers_of_a_replica_share_lanes_over_processes():
    processes = {"distributed_coordinator": "h:1", "distributed_num_processes": 2, "distributed_process_id": 0}
    run = run_config(pool_num_workers=6, num_envs=120, learner_num_devices=2, **processes)
    assert PLANS["multiple_learners"](run, Resources(8, "gpu", 2)).shape.workers_per_lane == 3


def test_too_few_rows_error_offers_fewer_workers():
    fewer = "use --run.num-envs 4 or fewer --pool.num-workers and --pool.lanes-per-worker$"
    with pytest.raises(UserError, match=f"1 rows do not divide over 2 workers x 2 lanes: {fewer}"):
        single_learner_fine(run_config(num_envs=1), Resources(1, "cpu", 2))
    single_learner_fine(run_config(num_envs=1, pool_num_workers=1, pool_lanes_per_worker=1), Resources(1, "cpu", 2))
