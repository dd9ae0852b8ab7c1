"""Plans: what policies place where, and every reason to refuse a plan."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.fragment import (
    Carries,
    Devices,
    FragmentKind,
    InProcess,
    Processes,
    Transport,
    WhenFull,
)
from jaxsrl.plan.plan import nearest_multiple, plan_from_json, plan_to_json
from jaxsrl.plan.policies import PLANS, serial, single_learner_fine
from jaxsrl.plan.validate import validate_memory, validate_plan
from tests.support.run_configs import run_config

TWO_GPUS = Resources(8, "gpu", 2)
SERVED = {FragmentKind.ENVIRONMENT, FragmentKind.INFERENCE, FragmentKind.LEARNER}


def fine(**settings):
    return single_learner_fine(run_config(**settings), TWO_GPUS)


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
    plan = serial(run_config(num_envs=96, rollout_length=16, pool_num_workers=5, max_policy_lag=0), TWO_GPUS)
    assert plan.shape == PoolShape(1, 1, 1, 96, 16, 1)
    assert plan.environments.placement == InProcess()
    assert {channel.transport for channel in plan.channels} == {Transport.IN_PROCESS}
    assert (plan.learner.placement, plan.inference.placement, plan.merge_lanes) == (Devices((0,)), Devices((0,)), False)


@pytest.mark.parametrize(("lag", "slots"), [(0, 2), (1, 3), (4, 6)])
def test_single_learner_fine_has_one_slot_more_than_the_lag(lag, slots):
    plan = fine(num_envs=120, pool_num_workers=6, pool_lanes_per_worker=2, pool_workers_per_lane=3, max_policy_lag=lag)
    assert plan.shape == PoolShape(6, 2, 3, 10, 32, slots)
    assert plan.shape.num_rows == 120
    assert plan.max_policy_lag == lag


def test_single_learner_fine_places_workers_and_learner():
    plan = fine(pool_num_workers=4, learner_num_devices=2)
    assert plan.environments.placement == Processes(4)
    assert plan.learner.placement == Devices((0, 1))
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


@pytest.mark.parametrize("name", PLANS)
def test_a_policy_depends_on_its_arguments_only(name):
    run = RunConfig()
    assert PLANS[name](run, TWO_GPUS) == PLANS[name](run, TWO_GPUS)
    assert PLANS[name](run, TWO_GPUS).name == name


def test_offline_has_a_dataset_and_a_learner():
    plan = PLANS["offline"](RunConfig(), TWO_GPUS)
    validate_plan(plan, TWO_GPUS)
    assert plan.is_offline
    assert [fragment.kind for fragment in plan.fragments] == [FragmentKind.DATASET, FragmentKind.LEARNER]
    assert plan_from_json(plan_to_json(plan)) == plan
    many = PLANS["offline"](run_config(learner_num_devices=3), TWO_GPUS)
    with pytest.raises(UserError, match="wants device 2, but there are 2"):
        validate_plan(many, TWO_GPUS)


@pytest.mark.parametrize("name", [name for name in PLANS if name != "offline"])
@pytest.mark.parametrize("lag", [0, 1, 2, 7])
def test_every_builtin_plan_is_valid_and_free_of_cycles(name, lag):
    plan = PLANS[name](RunConfig(max_policy_lag=lag), TWO_GPUS)
    validate_plan(plan, TWO_GPUS)
    assert {fragment.kind for fragment in plan.fragments} >= SERVED
    assert plan.num_rows == 128
    assert plan.max_policy_lag == (0 if name == "device_only" else lag)
    assert all(channel.source != channel.target for channel in plan.channels)
    assert all(channel.when_full is WhenFull.BLOCK for channel in plan.channels)


def test_indivisible_rows_error_names_the_nearest_number():
    with pytest.raises(UserError, match=r"100 rows do not divide over 3 workers x 2 lanes: use --run.num-envs 102$"):
        fine(num_envs=100, pool_num_workers=3)
    fine(num_envs=102, pool_num_workers=3)


def test_workers_that_do_not_divide_into_lanes_are_refused():
    with pytest.raises(UserError, match="pool.workers_per_lane must divide pool.num_workers: got 3 and 4"):
        fine(pool_num_workers=4, pool_workers_per_lane=3)


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


@pytest.mark.parametrize("kind", sorted(SERVED, key=str))
def test_a_fragment_without_a_replica_is_refused(kind):
    plan = with_fragment(fine(), kind, replicas=0)
    assert f"fragment {plan.fragment(kind).name} needs at least 1 replica: got 0" in refusal(plan)


@pytest.mark.parametrize("kind", [FragmentKind.INFERENCE, FragmentKind.LEARNER])
def test_a_device_that_is_not_there_is_refused(kind):
    plan = with_fragment(fine(), kind, placement=Devices((0, 2)))
    name = plan.fragment(kind).name
    assert f"plan single_learner_fine: fragment {name} wants device 2, but there are 2 gpu devices" in refusal(plan)
    assert "use --learner.num-devices 2 or less" in refusal(plan)


def test_a_fragment_on_no_device_is_refused():
    plan = with_fragment(fine(), FragmentKind.LEARNER, placement=Devices(()))
    assert "fragment learner wants device 0" in refusal(plan)


def test_indivisible_rows_of_the_learner_are_rejected():
    plan = serial(run_config(num_envs=9, learner_num_devices=2), TWO_GPUS)
    assert "fragment learner: 9 rows do not divide over 2 devices: use --run.num-envs 8" in refusal(plan)


def test_too_few_slots_for_the_lag_are_refused():
    plan = with_channel(fine(max_policy_lag=1), 3, max_lag=3)
    assert "max_policy_lag 3 needs at least 4 slots: got 3" in refusal(plan)


@given(st.integers(1, 10_000), st.integers(1, 64))
def test_the_number_a_refusal_offers_divides_and_none_is_nearer(number, of):
    offered = nearest_multiple(number, of)
    assert offered >= of
    assert offered % of == 0
    multiples = range(of, number + 2 * of, of)
    assert abs(offered - number) == min(abs(multiple - number) for multiple in multiples)


def test_a_plan_in_its_file_says_where_everything_is():
    saved = json.loads(json.dumps(plan_to_json(fine(pool_num_workers=4, learner_num_devices=2))))
    assert saved["fragments"][0] == {
        "name": "environments",
        "kind": "environment",
        "replicas": 1,
        "placement": {"kind": "Processes", "count": 4, "cores": []},
    }
    assert saved["fragments"][2]["placement"] == {"kind": "Devices", "indices": [0, 1], "platform": ""}
    assert saved["channels"][2] == {
        "source": "environments",
        "target": "learner",
        "carries": "trajectories",
        "transport": "shared_ring",
        "capacity": 3,
        "when_full": "block",
        "max_lag": 0,
        "synchronous": True,
    }
    assert saved["shape"]["num_workers"] == 4


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_comes_back_from_its_file(name):
    run = run_config(pool_num_workers=4, inference_num_servers=2, learner_gradients="asynchronous", max_policy_lag=2)
    plan = PLANS[name](run, TWO_GPUS)
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_a_fragment_that_nobody_reads_from_is_refused():
    plan = fine()
    channels = tuple(channel for channel in plan.channels if channel.carries is not Carries.PARAMETERS)
    assert "no channel leads out of fragment learner: add one" in refusal(dataclasses.replace(plan, channels=channels))


def test_a_plan_without_trajectories_is_refused():
    plan = with_channel(fine(), 2, carries=Carries.GRADIENTS)
    assert "no channel carries trajectories: add one" in refusal(plan)


def test_two_learners_are_refused():
    plan = fine()
    plan = dataclasses.replace(plan, fragments=(*plan.fragments, dataclasses.replace(plan.learner, name="other")))
    assert "expected one fragment of kind learner, got 2" in refusal(plan)


def test_servers_must_be_as_many_as_their_pools():
    plan = with_fragment(fine(), FragmentKind.INFERENCE, replicas=2)
    assert "fragment inference: 2 replicas cannot serve 1 replicas of environments" in refusal(plan)


def test_devices_that_do_not_divide_over_replicas_are_refused():
    plan = PLANS["decoupled"](run_config(inference_num_servers=2), TWO_GPUS)
    plan = with_fragment(plan, FragmentKind.INFERENCE, placement=Devices((0, 1, 2)))
    assert "3 devices do not divide over 2 replicas" in refusal(plan, Resources(8, "gpu", 3))


def test_replicas_share_devices_in_order_and_evenly():
    devices = Devices((3, 4, 5, 6))
    assert [devices.of_replica(replica, 2) for replica in range(2)] == [(3, 4), (5, 6)]
    assert [devices.of_replica(replica, 4) for replica in range(4)] == [(3,), (4,), (5,), (6,)]
    assert [Devices((1, 2)).of_replica(replica, 4) for replica in range(4)] == [(1,), (2,), (1,), (2,)]


def test_decoupled_needs_a_device_to_act_on():
    with pytest.raises(UserError, match=r"1 devices next to 2 of the learner are requested, but there are 2"):
        PLANS["decoupled"](run_config(learner_num_devices=2), TWO_GPUS)
    plan = PLANS["decoupled"](run_config(learner_num_devices=2, inference_platform="cpu"), TWO_GPUS)
    assert plan.inference.placement == Devices((0,), "cpu")
    validate_plan(plan, TWO_GPUS)


def test_idle_devices_of_replicas_are_rejected():
    six = Resources(8, "gpu", 6)
    with pytest.raises(UserError, match="leave some of 3 devices idle: use --inference.num-servers 3"):
        PLANS["decoupled"](run_config(inference_num_devices=3), six)
    run = {"pool_num_workers": 4, "learner_num_devices": 4, "learner_num_replicas": 2}
    with pytest.raises(UserError, match="2 asynchronous replicas, one device each, leave some of 4 devices idle"):
        PLANS["central"](run_config(**run, learner_gradients="asynchronous"), six)
    validate_plan(PLANS["central"](run_config(**run), six), six)


@pytest.mark.parametrize("name", ["central", "dedicated_environments", "multiple_learners", "serial"])
def test_the_host_acts_where_asked(name):
    plan = PLANS[name](run_config(pool_num_workers=4, learner_num_devices=2, inference_platform="cpu"), TWO_GPUS)
    assert plan.inference.placement == Devices((0,), "cpu")
    validate_plan(plan, TWO_GPUS)


def test_the_host_cannot_act_where_jax_may_not_use_it():
    plan = fine(inference_platform="cpu")
    assert "fragment inference is on the CPU, which JAX_PLATFORMS excludes: set JAX_PLATFORMS=cuda,cpu" in refusal(
        plan, Resources(8, "gpu", 2, 0)
    )


def test_decoupled_puts_acting_and_learning_on_different_devices():
    plan = PLANS["decoupled"](run_config(pool_num_workers=4, inference_num_servers=2), TWO_GPUS)
    assert (plan.learner.placement, plan.inference.placement) == (Devices((0,)), Devices((1,)))
    assert (plan.environments.replicas, plan.environments.placement, plan.shape.num_rows) == (2, Processes(2), 64)


def test_multiple_learners_are_as_many_as_devices():
    plan = PLANS["multiple_learners"](run_config(pool_num_workers=4, learner_num_devices=2), TWO_GPUS)
    assert {fragment.replicas for fragment in plan.fragments} == {2}
    assert plan.num_rows == 128
    with pytest.raises(UserError, match="3 workers do not divide over 2 replicas: use --pool.num-workers 4"):
        PLANS["multiple_learners"](run_config(pool_num_workers=3, learner_num_devices=2), TWO_GPUS)


@pytest.mark.parametrize(("gradients", "lag"), [("synchronous", 0), ("asynchronous", 5)])
def test_central_says_how_stale_a_gradient_may_be(gradients, lag):
    run = run_config(
        pool_num_workers=4, learner_num_replicas=4, learner_gradients=gradients, learner_max_gradient_staleness=5
    )
    channel = PLANS["central"](run, TWO_GPUS).channel(Carries.GRADIENTS)
    assert (channel.max_lag, channel.synchronous, channel.capacity) == (lag, gradients == "synchronous", 4)


def test_dedicated_environments_have_cores_of_their_own():
    plan = PLANS["dedicated_environments"](run_config(pool_num_workers=4), TWO_GPUS)
    assert plan.environments.placement == Processes(4, (4, 5, 6, 7))
    with pytest.raises(UserError, match="8 workers need a core each, and inference .* one more, but there are 8"):
        PLANS["dedicated_environments"](run_config(pool_num_workers=8, num_envs=160), TWO_GPUS)
    with pytest.raises(UserError, match="but there are 1: use --plan single_learner_fine"):
        PLANS["dedicated_environments"](run_config(pool_num_workers=1), Resources(1, "cpu", 1))
    assert "wants core 7, but this process may run on 6" in refusal(plan, Resources(6, "gpu", 2))


def test_an_actor_acts_for_its_own_rows_only():
    with pytest.raises(UserError, match="expected workers_per_lane 1, got 2"):
        PLANS["single_learner_coarse"](run_config(pool_workers_per_lane=2), TWO_GPUS)


def test_too_large_slots_are_rejected_with_their_bytes():
    from envpool_bridge.shm.layout import make_layout
    from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec

    plan = fine()
    layout = make_layout(EnvSpec("Big", ArraySpec((84, 84, 4), "uint8"), DiscreteSpec(4)), plan.shape, {})
    validate_memory(plan, layout, dataclasses.replace(TWO_GPUS, shared_memory_bytes=layout.total_bytes))
    with pytest.raises(UserError, match=f"take {layout.total_bytes:,} bytes of shared memory, but 1,000,000 are free"):
        validate_memory(plan, layout, dataclasses.replace(TWO_GPUS, shared_memory_bytes=1_000_000))


def test_what_this_machine_has_is_what_jax_sees():
    import os

    found = Resources.detect()
    assert (found.num_cores, found.platform, found.num_devices) == (len(os.sched_getaffinity(0)), "cpu", 4)
    assert found.num_host_devices == 4
    assert found.shared_memory_bytes > 0
    assert found.host_memory_bytes > 0
    assert found.device_memory_bytes is None  # a processor's devices use the host's


def test_only_asynchronous_plans_drop_trajectories():
    dropping = fine(max_policy_lag=2, learner_when_full="drop_oldest")
    assert dropping.channel(Carries.TRAJECTORIES).when_full is WhenFull.DROP_OLDEST
    validate_plan(dropping, TWO_GPUS)
    assert "expected --run.max-policy-lag 2 or more, got 1" in refusal(
        fine(max_policy_lag=1, learner_when_full="drop_oldest")
    )
    observations = with_channel(fine(max_policy_lag=2), 0, when_full=WhenFull.DROP_OLDEST)
    assert "carries observations, of which none may be dropped" in refusal(observations)
    replicas = run_config(max_policy_lag=2, learner_when_full="drop_oldest", learner_gradients="asynchronous")
    assert "asynchronous replicas learn from all" in refusal(PLANS["central"](replicas, TWO_GPUS))


KEEPS = {
    "max_policy_lag": 2,
    "learner_when_full": "drop_oldest",
    "learner_trajectory_buffer_size": 4,
    "learner_sample_reuse": 2,
}
REJECTS_DROPS = {
    "offline": "carries samples, of which none may be dropped",
    "central": "keeps trajectories, which needs one learner that applies its own gradients: got a parameter server",
} | dict.fromkeys(
    ["serial", "single_learner_coarse", "device_only", "distributed_replay"],
    "needs environment processes and a server: use WhenFull.BLOCK (--learner.when-full block)",
)


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_keeps_trajectories_or_is_rejected(name):
    plan = PLANS[name](run_config(**KEEPS), TWO_GPUS)
    if name in REJECTS_DROPS:
        assert REJECTS_DROPS[name] in refusal(plan)
    else:
        validate_plan(plan, TWO_GPUS)


def test_trajectory_reuse_and_dropping_must_agree():
    plan = fine(**KEEPS)
    validate_plan(plan, TWO_GPUS)
    channel = plan.channel(Carries.TRAJECTORIES)
    assert (channel.kept, channel.reuses) == (4, 2)
    assert plan_from_json(plan_to_json(plan)) == plan
    assert "keeps 4 of what it never drops" in refusal(with_channel(plan, 2, when_full=WhenFull.BLOCK))
    with pytest.raises(
        UserError, match="4 buffers trajectories that would be dropped, but learner.when_full is 'block'"
    ):
        run_config(learner_trajectory_buffer_size=4)
    with pytest.raises(UserError, match="learner.sample_reuse 2 needs buffered trajectories"):
        run_config(learner_sample_reuse=2)


def test_asynchronous_replicas_need_own_pools_and_servers():
    run = run_config(pool_num_workers=4, learner_num_replicas=2, learner_gradients="asynchronous")
    plan = PLANS["central"](run, TWO_GPUS)
    validate_plan(plan, TWO_GPUS)
    alone = with_fragment(plan, FragmentKind.LEARNER, replicas=1)
    assert "fragment learner: 1 asynchronous replicas need as many replicas of environment processes" in refusal(alone)
    inside = with_fragment(plan, FragmentKind.ENVIRONMENT, placement=InProcess())
    assert "2 asynchronous replicas need as many replicas of environment processes" in refusal(inside)
