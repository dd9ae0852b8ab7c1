"""Layout of drawings: boxes do not overlap, arrows lead from one box to another."""

import itertools

import pytest

from agents.api import Replay, ReplayAgent, ReplayConfig
from jaxsrl.config.parts import ReplayMemoryConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.drawing.layout import Box, place_channels, place_fragments, place_groups, with_replicas
from jaxsrl.plan.fragment import Carries, FragmentKind
from jaxsrl.plan.passes.apply import add_agent_fragments
from jaxsrl.plan.policies import PLANS
from tests.support.run_configs import run_config

SMALL = {"num_envs": 16, "pool_num_workers": 4, "max_policy_lag": 0, "learner_num_devices": 1}
LARGE = {
    "num_envs": 1024,
    "pool_num_workers": 32,
    "rollout_length": 128,
    "max_policy_lag": 12,
    "learner_num_devices": 8,
    "inference_num_servers": 8,
    "inference_num_devices": 4,
    "learner_gradients": "asynchronous",
    "learner_when_full": "drop_oldest",
}


def planned(policy, settings):
    return PLANS[policy](run_config(**settings), Resources(96, "gpu", 16))


@pytest.mark.parametrize("settings", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("policy", PLANS)
def test_boxes_are_apart_and_arrows_join_them(policy, settings):
    check_layout(planned(policy, settings))


@pytest.mark.parametrize("policy", ["single_learner_fine", "single_learner_coarse", "decoupled", "distributed_replay"])
def test_preparation_of_samples_is_below_the_learner(policy):
    data = Replay(ReplayConfig(priority_exponent=0.5, priority_delay=2), sequence_length=3, transforms=(print,))
    agent = ReplayAgent("toy", print, print, print, print, {}, data)
    plan = add_agent_fragments(planned(policy, SMALL), agent, ReplayMemoryConfig("host", 3, 2))
    check_layout(plan)
    boxes = place_fragments(plan, "gpu")
    assert boxes["prepare"].top < boxes["learner"].bottom
    # Priorities pass in a straight line that meets neither.
    arrows = [
        arrow for arrow in place_channels(plan, boxes) if plan.channels[arrow.channel].carries is Carries.PRIORITIES
    ]
    assert len(arrows) == 1
    assert (
        arrows[0].start[1]
        == arrows[0].end[1]
        > with_replicas(plan.fragment(FragmentKind.PREPARE), boxes["prepare"]).top
    )


def check_layout(plan):
    boxes = place_fragments(plan, "gpu")
    outer = {fragment.name: with_replicas(fragment, boxes[fragment.name]) for fragment in plan.fragments}
    for one, other in itertools.combinations(outer.values(), 2):
        assert not one.overlaps(other)
    arrows = place_channels(plan, boxes)
    assert sorted(arrow.channel for arrow in arrows) == list(range(len(plan.channels)))
    assert len({(arrow.start, arrow.end) for arrow in arrows}) == len(arrows)
    for arrow in arrows:
        channel = plan.channels[arrow.channel]
        for (x, y), name in ((arrow.start, channel.source), (arrow.end, channel.target)):
            box = outer[name]
            assert x in (box.left, box.right) or y in (box.bottom, box.top)
            assert box.left <= x <= box.right
            assert box.bottom <= y <= box.top
    for group in place_groups(plan, boxes, "gpu"):
        inside = [name for name, box in outer.items() if group.box.overlaps(box)]
        assert inside
        assert all(
            group.box.left < outer[name].left
            and outer[name].right < group.box.right
            and outer[name].top < group.box.top
            for name in inside
        )


def test_box_that_only_touches_does_not_overlap():
    box = Box(0, 0, 2, 2)
    assert box.overlaps(Box(1, 1, 3, 3))
    assert not box.overlaps(Box(2, 0, 3, 2))
    assert not box.overlaps(Box(0, 2, 2, 3))
