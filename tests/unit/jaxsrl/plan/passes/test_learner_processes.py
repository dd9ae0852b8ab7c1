"""A plan over processes: the same rows in the same order and lanes, divided; what cannot be divided is refused."""

import re

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.config.parts import DistributedConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.fragment import Devices
from jaxsrl.plan.passes.learner_processes import replicas_of, resources_over, split_over_processes
from jaxsrl.plan.policies import PLANS
from jaxsrl.plan.validate import validate_plan
from tests.support.run_configs import change_run, run_config

HOST = Resources(4, "cpu", 2, 2, 1 << 30)
RUN = run_config(num_envs=48, pool_num_workers=4, learner_num_devices=4)


def planned(policy: str, processes: int = 2, **changes):
    run = change_run(RUN, plan=policy, **changes)
    return split_over_processes(PLANS[policy](run, resources_over(HOST, processes)), processes, HOST.num_devices)


def test_each_process_serves_its_rows_on_its_first_device():
    plan = planned("single_learner_fine", learner_num_devices=2)
    assert plan.environments.replicas == plan.inference.replicas == 2
    assert plan.num_rows == 48
    assert plan.inference.placement == Devices((0, 2))
    assert plan.learner.placement == Devices((0, 2))
    assert [replicas_of(plan, process, 2) for process in (0, 1)] == [range(0, 1), range(1, 2)]
    validate_plan(plan, resources_over(HOST, 2))


def test_hosts_have_the_lanes_of_one_process():
    one = PLANS["single_learner_fine"](RUN, HOST)
    assert planned("single_learner_fine").shape.rows_per_lane == one.shape.rows_per_lane


def test_replicas_of_multiple_learners_stay_with_their_devices():
    plan = planned("multiple_learners")
    assert plan.environments.replicas == 4
    assert plan.learner.placement == plan.inference.placement == Devices((0, 1, 2, 3))
    assert [replicas_of(plan, process, 2) for process in (0, 1)] == [range(0, 2), range(2, 4)]
    validate_plan(plan, resources_over(HOST, 2))


def test_one_process_has_the_plan_as_it_was():
    plan = PLANS["single_learner_fine"](change_run(RUN, learner_num_devices=2), HOST)
    assert split_over_processes(plan, 1, 2) is plan


@pytest.mark.parametrize(
    ("policy", "changes", "says"),
    [
        ("serial", {"learner_num_devices": 2}, "environments run in the main process"),
        ("single_learner_coarse", {"learner_num_devices": 2}, "its actors hold the policy"),
        ("single_learner_fine", {"learner_num_devices": 3}, "use --learner.num-devices"),
        ("single_learner_fine", {"learner_num_devices": 2, "pool_num_workers": 3}, "use --pool.num-workers"),
        ("single_learner_fine", {"learner_num_devices": 6}, "use --learner.num-devices 4 or less"),
        (
            "single_learner_fine",
            {"learner_num_devices": 2, "learner_when_full": "drop_oldest", "max_policy_lag": 2},
            "it drops",
        ),
        ("multiple_learners", {"learner_num_devices": 3, "pool_num_workers": 3}, "do not divide over 2 processes"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_what_to_change(policy, changes, says):
    with pytest.raises(UserError, match=re.escape(says)):
        planned(policy, **changes)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"coordinator": "somewhere"}, "HOST:PORT"),
        ({"coordinator": "host:7777"}, "num_processes must be at least 1"),
        ({"coordinator": "host:7777", "num_processes": 2, "process_id": 2}, "process_id from 0 to one less"),
        ({"num_processes": 2}, "need distributed.coordinator"),
        ({"coordinator": "auto", "process_id": 1}, "need distributed.coordinator"),
        ({"lost_seconds": 0}, "at least 1"),
    ],
)
def test_half_a_configuration_is_refused(settings, says):
    with pytest.raises(UserError, match=re.escape(says)):
        DistributedConfig(**settings)
