"""A learner for each policy of agents: how a plan is divided, and what of a divided plan is refused by whose name."""

import dataclasses
import json

import pytest

from agents.api import Agent, OnPolicy
from agents.transforms.multi_policy import LearningGroup
from envpool_bridge.errors import UserError
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.fragment import EACH_GROUP, Carries, Channel, Devices, Fragment, FragmentKind, InProcess, Transport
from jaxsrl.plan.passes.policy_groups import check_groups, learns_by_group, plan_with_groups
from jaxsrl.plan.plan import plan_from_json, plan_to_json
from jaxsrl.plan.policies import PLANS
from jaxsrl.plan.validate import validate_plan
from tests.support.run_configs import run_config

MACHINE = Resources(8, "gpu", 4)


def agent_of(*names):
    def unused(*arguments):
        raise NotImplementedError

    groups = tuple(LearningGroup(name, (place,), len(names), unused) for place, name in enumerate(names))
    return Agent("toy", unused, unused, unused, unused, {}, OnPolicy(), groups=groups)


def plan_of(*names, num_devices=2, plan="dedicated_environments"):
    run = run_config(num_envs=96, plan=plan, learner_num_devices=num_devices)
    return plan_with_groups(PLANS[plan](run, MACHINE), agent_of(*names))


def with_learner(plan, number, **changes):
    learners = [*plan.learners]
    learners[number] = dataclasses.replace(learners[number], **changes)
    others = [fragment for fragment in plan.fragments if fragment.kind is not FragmentKind.LEARNER]
    return dataclasses.replace(plan, fragments=(*others, *learners))


def with_channel(plan, source, target, **changes):
    channels = tuple(
        dataclasses.replace(channel, **changes) if (channel.source, channel.target) == (source, target) else channel
        for channel in plan.channels
    )
    return dataclasses.replace(plan, channels=channels)


def refusal(plan):
    with pytest.raises(UserError) as refused:
        validate_plan(plan, MACHINE)
    return str(refused.value)


@pytest.mark.parametrize(
    ("names", "num_devices", "shares"),
    [
        (("a", "b"), 2, [(0,), (1,)]),
        (("a", "b"), 4, [(0, 1), (2, 3)]),
        (("a", "b", "c"), 4, [(0,), (1,), (2, 3)]),
        (("a", "b", "c", "d"), 4, [(0,), (1,), (2,), (3,)]),
    ],
)
def test_devices_are_divided_among_the_policies_that_learn(names, num_devices, shares):
    plan = plan_of(*names, num_devices=num_devices)
    assert [learner.placement for learner in plan.learners] == [Devices(share) for share in shares]
    assert [(learner.name, learner.group) for learner in plan.learners] == [(f"learner {name}", name) for name in names]
    validate_plan(plan, MACHINE)
    check_groups(plan, agent_of(*names))


def test_learner_parts_keep_all_channels():
    whole, plan = plan_of("a"), plan_of("a", "b")
    for name in ("learner a", "learner b"):
        mine = [channel for channel in plan.channels if name in (channel.source, channel.target)]
        renamed = [
            dataclasses.replace(
                channel,
                source=channel.source.replace(name, "learner"),
                target=channel.target.replace(name, "learner"),
            )
            for channel in mine
        ]
        assert renamed == [channel for channel in whole.channels if "learner" in (channel.source, channel.target)]
    assert len(plan.channels) == len(whole.channels) + 2


@pytest.mark.parametrize(("names", "num_devices"), [((), 4), (("a",), 4), (("a", "b"), 1), (("a", "b", "c"), 2)])
def test_one_policy_or_few_devices_have_one_learner(names, num_devices):
    plan = plan_of(*names, num_devices=num_devices)
    assert plan.learner == Fragment("learner", FragmentKind.LEARNER, 1, Devices(tuple(range(num_devices))))
    assert not learns_by_group(plan)
    validate_plan(plan, MACHINE)
    check_groups(plan, agent_of(*names))


def test_policy_groups_divide_a_plan_at_most_once():
    fine = plan_of("a", "b", plan="single_learner_fine")
    assert [learner.group for learner in fine.learners] == [""]
    divided = plan_of("a", "b")
    assert plan_with_groups(divided, agent_of("a", "b")) is divided


def test_plan_file_lists_groups_only_of_divided_plans():
    plan = plan_of("a", "b")
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan
    assert all("group" not in fragment for fragment in plan_to_json(plan_of("a"))["fragments"])


@pytest.mark.parametrize("group", ["", EACH_GROUP])
def test_several_learners_of_which_one_learns_all_are_refused(group):
    message = refusal(with_learner(plan_of("a", "b"), 1, group=group))
    assert "expected one fragment of kind learner, got 2, of which learner b names no policy" in message


def test_what_cannot_learn_one_policy_alone_is_refused():
    plan = plan_of("a", "b")
    assert "fragment learner b learns policy 'b', which needs devices" in refusal(
        with_learner(plan, 1, placement=InProcess())
    )
    assert "fragment learner a learns policy 'a' over all of its devices: expected 1 replica, got 2" in refusal(
        with_learner(plan, 0, replicas=2)
    )
    assert "fragment inference is inference for all policies, but names the group 'a'" in refusal(
        dataclasses.replace(plan, fragments=(*plan.fragments[:1], _named(plan.inference, "a"), *plan.fragments[2:]))
    )
    on_device = dataclasses.replace(plan.environments, placement=Devices((0,)))
    assert "fragment learner a learns policy 'a' alone, but environments are in one program" in refusal(
        dataclasses.replace(plan, fragments=(on_device, *plan.fragments[1:]))
    )
    gradients = Channel("learner a", "inference", Carries.GRADIENTS, Transport.DEVICE_COPY, 1)
    assert "fragment learner a learns policy 'a' alone, but the plan has a parameter server" in refusal(
        dataclasses.replace(plan, channels=(*plan.channels, gradients))
    )


def _named(fragment, group):
    return dataclasses.replace(fragment, group=group)


def test_policies_that_share_a_device_or_a_learner_are_refused():
    plan = plan_of("a", "b", num_devices=4)
    assert "fragment learner b wants device 1, on which learner a is" in refusal(
        with_learner(plan, 1, placement=Devices((3, 1)))
    )
    assert "fragment learner b learns policy 'a', as learner a does" in refusal(with_learner(plan, 1, group="a"))


def test_policies_that_are_not_published_together_are_refused():
    plan = plan_of("a", "b")
    late = with_channel(plan, "learner b", "inference", max_lag=0)
    assert "fragment learner b: its channel learner b -> inference is not like that of learner a" in refusal(late)
    assert "expected (capacity, when full, lag) (2, 'block', 1), got (2, 'block', 0)" in refusal(late)
    unread = with_channel(plan, "environments", "learner b", carries=Carries.OBSERVATIONS)
    assert "fragment learner b has no channel of trajectories into it" in refusal(unread)
    silent = with_channel(plan, "learner b", "inference", carries=Carries.ACTIONS)
    assert "fragment learner b has no channel of parameters out of it" in refusal(silent)


def test_indivisible_rows_of_a_policy_are_rejected():
    plan = with_learner(plan_of("a", "b", num_devices=2), 1, placement=Devices((1, 2, 3)))
    plan = dataclasses.replace(plan, shape=dataclasses.replace(plan.shape, rows_per_part=25))
    assert "fragment learner b: 100 rows do not divide over 3 devices: use --run.num-envs 99" in refusal(plan)


def test_learners_that_are_not_those_of_the_agent_are_refused():
    plan = plan_of("a", "b")
    with pytest.raises(
        UserError, match=r"fragment learner b learns policy 'b', which agent toy does not have .*\['a'\]"
    ):
        check_groups(plan, agent_of("a"))
    with pytest.raises(UserError, match=r"no fragment learns policies \['c'\]: add a learner for each"):
        check_groups(plan, agent_of("a", "b", "c"))
