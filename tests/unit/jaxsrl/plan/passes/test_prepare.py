"""Plans whose samples are prepared beside the learner: where, with which lag, and what is rejected."""

import pytest

from agents.api import Agent, OnPolicy, Replay, ReplayAgent, ReplayConfig
from envpool_bridge.errors import UserError
from jaxsrl.config.parts import ReplayMemoryConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.fragment import Carries, Devices, FragmentKind
from jaxsrl.plan.passes.apply import add_agent_fragments
from jaxsrl.plan.passes.prepare import prepare_lag
from jaxsrl.plan.plan import plan_from_json, plan_to_json
from jaxsrl.plan.policies import PLANS
from jaxsrl.plan.validate import validate_plan
from tests.support.run_configs import run_config

MACHINE = Resources(8, "gpu", 8)


def unused(*arguments):
    raise NotImplementedError


def agent_of(transforms=(unused,), **config):
    data = Replay(ReplayConfig(**config), sequence_length=3, transforms=transforms)
    return ReplayAgent("toy", unused, unused, unused, unused, {}, data)


def plan_of(policy, agent, memory="host", devices=2, lag=3, **config):
    run = run_config(num_envs=96, learner_num_devices=2, replay_memory=memory, **config)
    return add_agent_fragments(PLANS[policy](run, MACHINE), agent, ReplayMemoryConfig(memory, devices, lag))


@pytest.mark.parametrize(
    ("policy", "first"), [("serial", 2), ("single_learner_fine", 2), ("distributed_replay", 2), ("decoupled", 3)]
)
def test_preparation_takes_the_devices_after_all_others(policy, first):
    plan = plan_of(policy, agent_of())
    assert plan.prepare is not None
    assert (plan.prepare.replicas, plan.prepare.placement) == (2, Devices((first, first + 1)))
    ends = [(one.source, one.target, one.capacity) for one in plan.channels if one.carries is Carries.SAMPLES]
    assert ends == [("replay", "prepare", 1), ("prepare", "learner", 4)]
    assert prepare_lag(plan) == 3
    assert plan.max_policy_lag == PLANS[policy](run_config(), MACHINE).max_policy_lag
    validate_plan(plan, MACHINE)
    assert plan_from_json(plan_to_json(plan)) == plan


def test_no_preparing_devices_leave_the_plan_unchanged():
    plan = plan_of("serial", agent_of(), devices=0, lag=0)
    assert all(one.kind is not FragmentKind.PREPARE for one in plan.fragments)
    assert prepare_lag(plan) == 0


ON_POLICY = Agent("toy", unused, unused, unused, unused, {}, OnPolicy())


@pytest.mark.parametrize(
    ("agent", "changes", "message"),
    [
        (agent_of(), {"devices": 0}, "prepare-lag 3 needs devices that prepare"),
        (agent_of(), {"memory": "device"}, "on devices of the learner: use --replay.memory host"),
        (agent_of(transforms=()), {}, "agent toy has nothing to prepare"),
        (ON_POLICY, {}, "needs samples of replay, and there are none"),
        (agent_of(priority_exponent=0.5, priority_delay=1), {}, "use --agent.replay.priority-delay 3, or"),
    ],
)
def test_preparation_without_what_it_needs_is_rejected(agent, changes, message):
    with pytest.raises(UserError, match=message):
        plan_of("single_learner_fine", agent, **changes)


def test_preparation_on_missing_devices_is_rejected():
    plan = plan_of("single_learner_fine", agent_of(), devices=7)
    with pytest.raises(UserError, match="fragment prepare wants device 8, but there are 8 gpu devices"):
        validate_plan(plan, MACHINE)
