"""Plans of agents that learn from replay: where experience is kept, and what is refused."""

import dataclasses

import pytest

from agents.api import Agent, OnPolicy, Replay, ReplayAgent, ReplayConfig
from envpool_bridge.errors import UserError
from jaxsrl.config.parts import ReplayMemoryConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.fragment import Carries, Channel, Devices, FragmentKind, InProcess, Transport
from jaxsrl.plan.passes.apply import add_agent_fragments
from jaxsrl.plan.plan import plan_from_json, plan_to_json
from jaxsrl.plan.policies import PLANS
from jaxsrl.plan.validate import validate_plan
from tests.support.run_configs import run_config

MACHINE = Resources(8, "gpu", 4)
WITH_REPLAY = [
    "serial",
    "single_learner_fine",
    "single_learner_coarse",
    "decoupled",
    "multiple_learners",
    "device_only",
]


def unused(*arguments):
    raise NotImplementedError


def replaying(**config):
    data = Replay(ReplayConfig(**config), sequence_length=3)
    return ReplayAgent("toy", unused, unused, unused, unused, {}, data)


ON_POLICY = Agent("toy", unused, unused, unused, unused, {}, OnPolicy())


def plan_of(policy, agent, replay_on="device", **config):
    run = run_config(num_envs=96, learner_num_devices=2, replay_memory=replay_on, **config)
    return add_agent_fragments(PLANS[policy](run, MACHINE), agent, run.replay)


def ends(plan, carries):
    return [(one.source, one.target) for one in plan.channels if one.carries is carries]


@pytest.mark.parametrize("policy", WITH_REPLAY)
def test_replay_stands_on_the_devices_of_the_learner(policy):
    plan = plan_of(policy, replaying())
    assert plan.replay is not None
    assert plan.replay.placement == plan.learner.placement
    assert ends(plan, Carries.TRAJECTORIES) == [("environments", "replay")]
    assert ends(plan, Carries.SAMPLES) == [("replay", "learner")]
    assert ends(plan, Carries.PRIORITIES) == []
    validate_plan(plan, MACHINE)


def test_on_the_host_samples_are_copied_to_the_devices():
    plan = plan_of("single_learner_fine", replaying(), "host")
    assert plan.replay is not None
    assert isinstance(plan.replay.placement, InProcess)
    samples = plan.channel(Carries.SAMPLES)
    assert samples is not None
    assert samples.transport is Transport.DEVICE_COPY
    validate_plan(plan, MACHINE)


def test_priorities_go_back_as_late_as_the_agent_says():
    plan = plan_of("decoupled", replaying(priority_exponent=0.6, priority_delay=2))
    channel = plan.channel(Carries.PRIORITIES)
    assert channel is not None
    assert (channel.source, channel.target, channel.max_lag, channel.capacity) == ("learner", "replay", 2, 3)
    validate_plan(plan, MACHINE)


def test_distributed_replay_always_stores_on_the_host():
    plan = plan_of("distributed_replay", replaying(), "device", max_policy_lag=4)
    assert plan.replay is not None
    assert isinstance(plan.replay.placement, InProcess)
    assert ends(plan, Carries.TRAJECTORIES) == [("environments", "replay")]
    assert plan.inference.placement == plan.environments.placement
    validate_plan(plan, MACHINE)


def test_plans_with_replay_come_back_from_json():
    plan = plan_of("distributed_replay", replaying(priority_exponent=0.6))
    assert plan_from_json(plan_to_json(plan)) == plan


def test_plan_without_trajectory_reuse_is_unchanged():
    plan = PLANS["decoupled"](RunConfig(num_envs=96), MACHINE)
    assert add_agent_fragments(plan, ON_POLICY, ReplayMemoryConfig("host")) is plan


def test_a_plan_with_replay_refuses_an_agent_without():
    with pytest.raises(
        UserError, match="fragment replay keeps experience, but agent toy learns from each trajectory once"
    ):
        plan_of("distributed_replay", ON_POLICY)


def test_a_parameter_server_refuses_replay():
    with pytest.raises(
        UserError, match="agent toy learns from replay, which replicas of a parameter server do not have"
    ):
        plan_of("central", replaying())


def test_host_replay_of_device_environments_is_rejected():
    with pytest.raises(
        UserError, match="replay is on the host, but environments are on devices: use --replay.memory device"
    ):
        plan_of("device_only", replaying(), "host")


def test_replay_on_devices_that_do_not_learn_is_refused():
    plan = plan_of("single_learner_fine", replaying())
    elsewhere = tuple(
        dataclasses.replace(one, placement=Devices((3,))) if one.kind is FragmentKind.REPLAY else one
        for one in plan.fragments
    )
    with pytest.raises(UserError, match="needs the learner's own devices or the main process"):
        add_agent_fragments(dataclasses.replace(plan, fragments=elsewhere), replaying())


def test_trajectories_that_may_be_dropped_are_refused():
    with pytest.raises(UserError, match="no trajectory may be missing between two: use --learner.when-full block"):
        plan_of("single_learner_fine", replaying(), max_policy_lag=2, learner_when_full="drop_oldest")


def test_priorities_later_than_the_declared_delay_are_rejected():
    plan = plan_of("single_learner_fine", replaying())
    late = Channel("learner", "replay", Carries.PRIORITIES, Transport.IN_PROCESS, 4, max_lag=3)
    with pytest.raises(UserError, match="may be 3 gradient steps late, but --agent.replay.priority-delay is 1"):
        add_agent_fragments(dataclasses.replace(plan, channels=(*plan.channels, late)), replaying(priority_delay=1))
