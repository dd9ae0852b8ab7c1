"""Shares of wall time by fragment: what follows from totals, and what nobody can know."""

import pytest

from jaxsrl.machine.resources import Resources
from jaxsrl.metrics.utilization import utilization, wait_reason
from jaxsrl.plan.policies import PLANS
from tests.support.run_configs import run_config

RESOURCES = Resources(num_cores=8, num_devices=4, platform="cpu")


def plan(policy, **changes):
    return PLANS[policy](run_config(plan=policy, num_envs=16, **changes), RESOURCES)


def test_a_worker_that_does_not_wait_works():
    gained = {"env/wait_seconds": 0.5, "inference/wait_seconds": 1.0, "inference/busy_seconds": 0.4}
    shares = utilization(plan("single_learner_fine"), gained, 2.0)
    assert shares == {
        "utilization/environments/busy": 0.75,
        "utilization/environments/wait": 0.25,
        "utilization/inference/busy": 0.2,
        "utilization/inference/wait": 0.5,
    }


def test_an_actor_divides_its_time_between_stepping_and_acting():
    gained = {"env/wait_seconds": 1.0, "inference/busy_seconds": 2.0, "learner/busy_seconds": 3.0}
    shares = utilization(plan("single_learner_coarse"), gained, 4.0)
    assert shares == {
        "utilization/environments/busy": 0.25,
        "utilization/environments/wait": 0.25,
        "utilization/inference/busy": 0.5,
        "utilization/learner/busy": 0.75,
    }


def test_serial_plan_has_busy_shares_without_waits():
    gained = {"env/busy_seconds": 1.0, "inference/busy_seconds": 0.5, "learner/busy_seconds": 0.5}
    shares = utilization(plan("serial"), gained, 2.0)
    assert shares == {
        "utilization/environments/busy": 0.5,
        "utilization/inference/busy": 0.25,
        "utilization/learner/busy": 0.25,
    }


def test_a_learner_that_waits_for_samples_is_not_busy():
    gained = {
        "learner/busy_seconds": 1.5,
        "learner/wait_seconds": 0.25,
        "learner/sample_wait_seconds": 0.5,
        "replay/busy_seconds": 1.0,
    }
    shares = utilization(plan("distributed_replay"), gained, 2.0)
    assert shares == {
        "utilization/replay/busy": 0.5,
        "utilization/learner/busy": 0.5,
        "utilization/learner/wait": 0.375,
        "utilization/learner/wait_on/replay": 0.25,
    }


def test_device_plan_has_only_the_learner_share():
    assert utilization(plan("device_only"), {"learner/busy_seconds": 1.0}, 2.0) == {"utilization/learner/busy": 0.5}


def test_the_parameter_server_is_busy_while_it_is_held():
    asynchronous = plan("central", learner_num_replicas=2, learner_gradients="asynchronous")
    gained = {"learner/wait_seconds": 0.5, "server/busy_seconds": 0.25}
    shares = utilization(asynchronous, gained, 1.0)
    assert shares == {"utilization/learner/wait": 0.5, "utilization/server/busy": 0.25}


def test_shares_never_exceed_one():
    gained = {"env/wait_seconds": 2.5, "learner/busy_seconds": 3.0, "learner/sample_wait_seconds": 3.5}
    shares = utilization(plan("distributed_replay"), gained, 2.0)
    assert shares["utilization/environments/wait"] == shares["utilization/learner/wait"] == 1.0
    assert shares["utilization/environments/busy"] == shares["utilization/learner/busy"] == 0.0


@pytest.mark.parametrize(
    ("policy", "name", "expected"),
    [
        ("single_learner_fine", "environments", "actions, free slots"),
        ("single_learner_fine", "inference", "observations, parameters"),
        ("single_learner_fine", "learner", "trajectories"),
        ("distributed_replay", "learner", "samples"),
        ("central", "server", "gradients"),
        ("central", "learner", "trajectories, parameters"),
    ],
)
def test_what_a_fragment_waits_for_is_what_its_channels_carry(policy, name, expected):
    assert wait_reason(plan(policy), name) == expected


def test_wait_reason_omits_free_slots_for_droppable_slots():
    drops = plan("single_learner_fine", learner_when_full="drop_oldest", max_policy_lag=2)
    assert wait_reason(drops, "environments") == "actions"
