"""Shares of wall time by fragment: what follows from totals, and what nobody can know."""

import pytest

from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.metrics.utilization import utilization, wait_reason
from jaxsrl.plan.policies import PLANS

RESOURCES = Resources(num_cores=8, num_devices=4, platform="cpu")


def plan(policy, **changes):
    return PLANS[policy](RunConfig(policy=policy, num_envs=16, **changes), RESOURCES)


def test_a_worker_that_does_not_wait_works():
    gained = {"environment/wait_seconds": 0.5, "inference/wait_seconds": 1.0, "inference/busy_seconds": 0.4}
    shares = utilization(plan("single_learner_fine"), gained, 2.0)
    assert shares == {
        "busy_share/environments": 0.75,
        "wait_share/environments": 0.25,
        "busy_share/inference": 0.2,
        "wait_share/inference": 0.5,
    }


def test_an_actor_divides_its_time_between_stepping_and_acting():
    gained = {"environment/wait_seconds": 1.0, "inference/busy_seconds": 2.0, "learner/busy_seconds": 3.0}
    shares = utilization(plan("single_learner_coarse"), gained, 4.0)
    assert shares == {
        "busy_share/environments": 0.25,
        "wait_share/environments": 0.25,
        "busy_share/inference": 0.5,
        "busy_share/learner": 0.75,
    }


def test_serial_plan_has_busy_shares_without_waits():
    gained = {"environment/busy_seconds": 1.0, "inference/busy_seconds": 0.5, "learner/busy_seconds": 0.5}
    shares = utilization(plan("serial"), gained, 2.0)
    assert shares == {"busy_share/environments": 0.5, "busy_share/inference": 0.25, "busy_share/learner": 0.25}


def test_a_learner_that_waits_for_samples_is_not_busy():
    gained = {
        "learner/busy_seconds": 1.5,
        "learner/wait_seconds": 0.25,
        "learner/sample_wait_seconds": 0.5,
        "replay/busy_seconds": 1.0,
    }
    shares = utilization(plan("distributed_replay"), gained, 2.0)
    assert shares == {
        "busy_share/replay": 0.5,
        "busy_share/learner": 0.5,
        "wait_share/learner": 0.375,
        "wait_on/learner/replay": 0.25,
    }


def test_device_plan_has_only_the_learner_share():
    assert utilization(plan("device_only"), {"learner/busy_seconds": 1.0}, 2.0) == {"busy_share/learner": 0.5}


def test_the_parameter_server_is_busy_while_it_is_held():
    asynchronous = plan("central", num_replicas=2, gradients="asynchronous")
    gained = {"learner/wait_seconds": 0.5, "server/busy_seconds": 0.25}
    shares = utilization(asynchronous, gained, 1.0)
    assert shares == {"wait_share/learner": 0.5, "busy_share/server": 0.25}


def test_shares_never_exceed_one():
    gained = {"environment/wait_seconds": 2.5, "learner/busy_seconds": 3.0, "learner/sample_wait_seconds": 3.5}
    shares = utilization(plan("distributed_replay"), gained, 2.0)
    assert shares["wait_share/environments"] == shares["wait_share/learner"] == 1.0
    assert shares["busy_share/environments"] == shares["busy_share/learner"] == 0.0


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
    drops = plan("single_learner_fine", when_full="drop_oldest", max_policy_lag=2)
    assert wait_reason(drops, "environments") == "actions"
