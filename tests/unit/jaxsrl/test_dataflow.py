"""Plans: what policies place where, and every reason to refuse a plan."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envpool_bridge.errors import UserError
from envpool_bridge.layout import PoolShape
from jaxsrl.config import RunConfig
from jaxsrl.dataflow.fragment import (
    Channel,
    Devices,
    Fragment,
    FragmentKind,
    InProcess,
    Processes,
    Transport,
    WhenFull,
)
from jaxsrl.dataflow.plan import nearest_multiple, plan_to_json, validate_plan
from jaxsrl.dataflow.policies import POLICIES
from jaxsrl.dataflow.policies.serial import serial
from jaxsrl.dataflow.policies.single_learner_fine import single_learner_fine
from jaxsrl.dataflow.resources import Resources

TWO_GPUS = Resources(8, "gpu", 2)


def fine(**settings):
    return single_learner_fine(RunConfig(**settings), TWO_GPUS)


def with_fragment(plan, kind, **changes):
    fragments = [
        dataclasses.replace(fragment, **changes) if fragment.kind is kind else fragment for fragment in plan.fragments
    ]
    return dataclasses.replace(plan, fragments=tuple(fragments))


def with_channel(plan, index, **changes):
    channels = list(plan.channels)
    channels[index] = dataclasses.replace(channels[index], **changes)
    return dataclasses.replace(plan, channels=tuple(channels))


def refusal(plan, resources=TWO_GPUS):
    with pytest.raises(UserError) as refused:
        validate_plan(plan, resources)
    return str(refused.value)


def test_serial_is_one_lane_of_all_rows_in_the_main_process():
    plan = serial(RunConfig(num_envs=96, rollout_length=16, num_env_workers=5, max_policy_lag=0), TWO_GPUS)
    assert plan.shape == PoolShape(1, 1, 1, 96, 16, 1)
    assert plan.in_process
    assert {channel.transport for channel in plan.channels} == {Transport.IN_PROCESS}
    assert (plan.learner_devices, plan.inference_device, plan.merge_lanes) == ((0,), 0, False)


@pytest.mark.parametrize(("lag", "slots"), [(0, 2), (1, 3), (4, 6)])
def test_single_learner_fine_has_a_slot_to_learn_from_beside_those_that_the_lag_lets_fill(lag, slots):
    plan = fine(num_envs=120, num_env_workers=6, lanes_per_worker=2, workers_per_lane=3, max_policy_lag=lag)
    assert plan.shape == PoolShape(6, 2, 3, 10, 32, slots)
    assert plan.shape.num_rows == 120
    assert plan.max_policy_lag == lag


def test_single_learner_fine_puts_environments_in_processes_and_the_learner_on_devices():
    plan = fine(num_env_workers=4, num_devices=2)
    assert not plan.in_process
    assert plan.fragment(FragmentKind.ENVIRONMENT).placement == Processes(4)
    assert plan.learner_devices == (0, 1)
    transports = {(channel.source, channel.target): channel.transport for channel in plan.channels}
    assert transports == {
        ("environments", "inference"): Transport.SHARED_RING,
        ("inference", "environments"): Transport.SHARED_RING,
        ("environments", "learner"): Transport.SHARED_RING,
        ("learner", "inference"): Transport.DEVICE_COPY,
    }


@pytest.mark.parametrize(("batching", "merges"), [("lane", False), ("merged", True)])
def test_lanes_are_merged_only_where_asked(batching, merges):
    assert fine(inference_batching=batching).merge_lanes is merges


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_depends_on_its_arguments_only(name):
    run = RunConfig(num_devices=2)
    assert POLICIES[name](run, TWO_GPUS) == POLICIES[name](run, TWO_GPUS)
    assert POLICIES[name](run, TWO_GPUS).policy == name


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("lag", [0, 1, 2, 7])
def test_what_a_policy_makes_is_accepted_and_nothing_waits_for_itself(name, lag):
    plan = POLICIES[name](RunConfig(max_policy_lag=lag), TWO_GPUS)
    validate_plan(plan, TWO_GPUS)
    assert {fragment.kind for fragment in plan.fragments} == set(FragmentKind)
    assert all(channel.source != channel.target for channel in plan.channels)
    assert all(channel.when_full is WhenFull.BLOCK for channel in plan.channels)


def test_rows_that_do_not_divide_are_refused_with_the_nearest_number_that_does():
    with pytest.raises(UserError, match=r"100 rows do not divide over 3 workers x 2 lanes: use --run.num-envs 102$"):
        fine(num_envs=100, num_env_workers=3)
    fine(num_envs=102, num_env_workers=3)


def test_workers_that_do_not_divide_into_lanes_are_refused():
    with pytest.raises(UserError, match="workers_per_lane must divide num_env_workers: got 3 and 4"):
        fine(num_env_workers=4, workers_per_lane=3)


def test_two_fragments_of_one_name_are_refused():
    plan = with_fragment(fine(), FragmentKind.INFERENCE, name="learner")
    assert "fragment names must differ: got ['environments', 'learner', 'learner']" in refusal(plan)


@pytest.mark.parametrize("end", ["source", "target"])
def test_a_channel_that_ends_nowhere_is_refused(end):
    plan = with_channel(fine(), 2, **{end: "nowhere"})
    assert "has no fragment 'nowhere': expected one of ['environments', 'inference', 'learner']" in refusal(plan)


def test_a_channel_that_holds_nothing_is_refused():
    assert "channel environments -> learner needs a capacity of at least 1: got 0" in refusal(
        with_channel(fine(), 2, capacity=0)
    )


@pytest.mark.parametrize("kind", FragmentKind)
def test_a_fragment_without_a_replica_is_refused(kind):
    plan = with_fragment(fine(), kind, replicas=0)
    assert f"fragment {plan.fragment(kind).name} needs at least 1 replica: got 0" in refusal(plan)


@pytest.mark.parametrize("kind", [FragmentKind.INFERENCE, FragmentKind.LEARNER])
def test_a_device_that_is_not_there_is_refused(kind):
    plan = with_fragment(fine(), kind, placement=Devices((0, 2)))
    name = plan.fragment(kind).name
    assert f"plan single_learner_fine: fragment {name} wants device 2, but there are 2 gpu devices" in refusal(plan)
    assert "use --run.num-devices 2 or less" in refusal(plan)


def test_a_fragment_on_no_device_is_refused():
    plan = with_fragment(fine(), FragmentKind.LEARNER, placement=Devices(()))
    assert "fragment learner wants device 0" in refusal(plan)


def test_rows_that_do_not_divide_over_the_learners_devices_are_refused():
    plan = serial(RunConfig(num_envs=9, num_devices=2), TWO_GPUS)
    assert "fragment learner: 9 rows do not divide over 2 devices: use --run.num-envs 8" in refusal(plan)


def test_too_few_slots_for_the_lag_are_refused():
    plan = dataclasses.replace(fine(max_policy_lag=1), max_policy_lag=3)
    assert "max_policy_lag 3 needs at least 4 slots: got 3" in refusal(plan)


@given(st.integers(1, 10_000), st.integers(1, 64))
def test_the_number_a_refusal_offers_divides_and_none_is_nearer(number, of):
    offered = nearest_multiple(number, of)
    assert offered >= of
    assert offered % of == 0
    multiples = range(of, number + 2 * of, of)
    assert abs(offered - number) == min(abs(multiple - number) for multiple in multiples)


def test_a_plan_in_its_file_says_where_everything_is():
    saved = json.loads(json.dumps(plan_to_json(fine(num_env_workers=4, num_devices=2))))
    assert saved["fragments"][0] == {
        "name": "environments",
        "kind": "environment",
        "replicas": 4,
        "placement": {"kind": "Processes", "count": 4},
    }
    assert saved["fragments"][2]["placement"] == {"kind": "Devices", "indices": [0, 1]}
    assert saved["channels"][2] == {
        "source": "environments",
        "target": "learner",
        "carries": "trajectories",
        "transport": "shared_ring",
        "capacity": 3,
        "when_full": "block",
    }
    assert saved["shape"]["num_workers"] == 4


def test_a_plan_without_devices_learns_and_acts_on_the_first():
    fragments = tuple(Fragment(kind.value, kind, 1, InProcess()) for kind in FragmentKind)
    channel = Channel("environment", "learner", "trajectories", Transport.IN_PROCESS, 1)
    plan = dataclasses.replace(fine(), fragments=fragments, channels=(channel,))
    validate_plan(plan, TWO_GPUS)
    assert (plan.in_process, plan.learner_devices, plan.inference_device) == (True, (0,), 0)


def test_what_this_machine_has_is_what_jax_sees():
    import os

    assert Resources.detect() == Resources(len(os.sched_getaffinity(0)), "cpu", 4)
