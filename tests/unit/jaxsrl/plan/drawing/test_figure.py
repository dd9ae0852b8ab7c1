"""Drawings of plans: every word readable, nothing on top of another, the same plan the same bytes."""

import itertools
import struct

import pytest
from matplotlib.text import Text

from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import make_layout
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.cost.channel_bytes import bytes_of_plan
from jaxsrl.plan.drawing.figure import draw_figure, draw_plan
from jaxsrl.plan.drawing.layout import Box, place_channels, place_fragments, place_groups, with_replicas
from jaxsrl.plan.policies import POLICIES

SPEC = EnvSpec("pixels", ArraySpec((4, 84, 84), "uint8"), DiscreteSpec(4))
SMALL = {"num_envs": 16, "num_env_workers": 4, "max_policy_lag": 0, "num_devices": 1}
LARGE = {
    "num_envs": 1024,
    "num_env_workers": 32,
    "rollout_length": 128,
    "max_policy_lag": 12,
    "num_devices": 8,
    "num_inference_servers": 8,
    "num_inference_devices": 4,
    "gradients": "asynchronous",
    "when_full": "drop_oldest",
}


def planned(policy, settings):
    plan = POLICIES[policy](RunConfig(**settings), Resources(96, "gpu", 16))
    layout = make_layout(SPEC, plan.shape, {"behaviour_log_prob": ArraySpec((), "float32")})
    return plan, bytes_of_plan(plan, layout, 6_700_000)


@pytest.mark.parametrize("settings", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("policy", POLICIES)
def test_no_text_lies_on_another_or_leaves_the_picture(policy, settings):
    plan, sizes = planned(policy, settings)
    figure = draw_figure(plan, sizes, "gpu")
    figure.canvas.draw()
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    written = " ".join(text.get_text() for text in texts)
    for channel in plan.channels:
        assert channel.carries.value in written
    for fragment in plan.fragments:
        assert fragment.name in written
    extents = {text.get_text(): text.get_window_extent() for text in texts}
    for words, extent in extents.items():
        assert extent.x0 >= 0, words
        assert extent.x1 <= 1200, words
        assert extent.y0 >= 0, words
        assert extent.y1 <= 700, words
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    for (one, here), (other, there) in itertools.combinations(boxes, 2):
        assert not here.overlaps(there), f"{one!r} lies on {other!r}"
    assert min(text.get_fontsize() for text in texts) >= 9.5


@pytest.mark.parametrize("settings", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("policy", POLICIES)
def test_boxes_are_apart_and_arrows_lead_from_one_to_the_other(policy, settings):
    plan, _ = planned(policy, settings)
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


def test_boxes_that_only_touch_do_not_overlap():
    box = Box(0, 0, 2, 2)
    assert box.overlaps(Box(1, 1, 3, 3))
    assert not box.overlaps(Box(2, 0, 3, 2))
    assert not box.overlaps(Box(0, 2, 2, 3))


def test_the_same_plan_gives_the_same_svg(tmp_path):
    plan, sizes = planned("central", SMALL)
    for name in ("one.svg", "two.svg"):
        draw_plan(plan, sizes, tmp_path / name, "gpu")
    drawn = (tmp_path / "one.svg").read_bytes()
    assert drawn == (tmp_path / "two.svg").read_bytes()
    assert b"<svg" in drawn
    other, other_sizes = planned("central", {**SMALL, "num_envs": 32})
    draw_plan(other, other_sizes, tmp_path / "three.svg", "gpu")
    assert (tmp_path / "three.svg").read_bytes() != drawn


def test_a_png_is_1200_pixels_wide(tmp_path):
    draw_plan(*planned("serial", SMALL), tmp_path / "plan.png", "gpu")
    data = (tmp_path / "plan.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (1200, 700)


def test_what_cannot_be_drawn_is_refused(tmp_path):
    plan, sizes = planned("serial", SMALL)
    with pytest.raises(UserError, match=r"as \.svg or \.png: got .*plan\.pdf"):
        draw_plan(plan, sizes, tmp_path / "plan.pdf")
    with pytest.raises(UserError, match="there is no directory .*nowhere"):
        draw_plan(plan, sizes, tmp_path / "nowhere" / "plan.svg")
