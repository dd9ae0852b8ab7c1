"""Layout of plans with several learners: boxes do not overlap, arrows lead from one box to another."""

import itertools

import pytest

from jaxsrl.machine.resources import Resources
from jaxsrl.plan.drawing.layout import place_channels, place_groups, place_learners, with_replicas
from jaxsrl.plan.passes.apply import add_agent_fragments
from jaxsrl.plan.plan import Plan
from jaxsrl.plan.policies import PLANS
from tests.support.run_configs import run_config
from tests.unit.jaxsrl.plan.passes.test_policy_groups import agent_of

NAMES = ("hunters", "prey", "leader", "scouts")


def plan_of(count: int, **changes) -> Plan:
    settings = {
        "num_envs": 1024,
        "pool_num_workers": 32,
        "rollout_length": 128,
        "learner_num_devices": 8,
        "max_policy_lag": 12,
    }
    config = run_config(**{**settings, **changes})
    return add_agent_fragments(
        PLANS["dedicated_environments"](config, Resources(96, "gpu", 8)), agent_of(*NAMES[:count])
    )


@pytest.mark.parametrize("count", [2, 4])
def test_boxes_are_apart_and_arrows_join_them(count):
    plan = plan_of(count)
    boxes = place_learners(plan)
    outer = {fragment.name: with_replicas(fragment, boxes[fragment.name]) for fragment in plan.fragments}
    for one, other in itertools.combinations(outer.values(), 2):
        assert not one.overlaps(other)
    arrows = place_channels(plan, boxes)
    assert sorted(arrow.channel for arrow in arrows) == list(range(len(plan.channels)))
    assert len({arrow.start for arrow in arrows}) == len(arrows)
    for arrow in arrows:
        channel = plan.channels[arrow.channel]
        for (x, y), name in ((arrow.start, channel.source), (arrow.end, channel.target)):
            assert outer[name].left < x < outer[name].right
            assert y in (outer[name].bottom, outer[name].top)
        passed = [outer[one.name] for one in plan.fragments if one.name not in (channel.source, channel.target)]
        x = arrow.start[0]
        low, high = sorted((arrow.start[1], arrow.end[1]))
        assert not any(box.left < x < box.right and box.bottom < high and low < box.top for box in passed)
    assert [group.title for group in place_groups(plan, boxes, "gpu")] == ["host processes", "gpu devices"]
