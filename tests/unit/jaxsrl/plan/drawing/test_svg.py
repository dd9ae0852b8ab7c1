"""The plan's drawing for the page: an element for every fragment and channel, inside the picture, whatever the names are."""

import dataclasses
import itertools
import re
from xml.etree import ElementTree

import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import make_layout
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.cost.channel_bytes import bytes_of_plan
from jaxsrl.plan.drawing.svg import draw_plan, plan_as_svg
from jaxsrl.plan.plan import plan_from_json, plan_to_json
from jaxsrl.plan.policies import PLANS
from jaxsrl.terminal.format import format_bytes
from tests.support.run_configs import run_config
from tests.unit.jaxsrl.plan.drawing.test_group_layout import plan_of

SVG = "{http://www.w3.org/2000/svg}"
CONFIG = run_config(
    num_envs=16, pool_num_workers=4, learner_num_devices=2, inference_num_servers=2, inference_num_devices=2
)
SPEC = EnvSpec("pixels", ArraySpec((4, 84, 84), "uint8"), DiscreteSpec(4))


def sized(policy, config=CONFIG):
    plan = PLANS[policy](config, Resources(8, "gpu", 4))
    layout = make_layout(SPEC, plan.shape, {"behavior_log_prob": ArraySpec((), "float32")})
    return plan, bytes_of_plan(plan, layout, 6_700_000)


def drawn(plan):
    return ElementTree.fromstring(plan_as_svg(plan_from_json(plan_to_json(plan))))


@pytest.mark.parametrize("policy", ["single_learner_fine", "single_learner_coarse", "central", "decoupled", "serial"])
def test_every_fragment_and_channel_of_a_plan_is_drawn(policy):
    plan = PLANS[policy](CONFIG, Resources(8, "gpu", 4))
    svg = drawn(plan)
    groups = [group for group in svg.iter(f"{SVG}g") if group.get("class") == "fragment"]
    assert [(group.get("data-fragment"), group.get("data-kind")) for group in groups] == [
        (fragment.name, fragment.kind.value) for fragment in plan.fragments
    ]
    carried = [text.text for text in svg.iter(f"{SVG}text") if text.get("class") == "carries"]
    assert carried == [channel.carries.value for channel in plan.channels] or sorted(carried) == sorted(
        channel.carries.value for channel in plan.channels
    )


@pytest.mark.parametrize("policy", ["single_learner_fine", "central"])
def test_what_is_drawn_lies_inside_the_picture(policy):
    svg = drawn(PLANS[policy](CONFIG, Resources(8, "gpu", 4)))
    left, top, width, height = (float(number) for number in svg.get("viewBox").split())
    for rect in svg.iter(f"{SVG}rect"):
        x, y, w, h = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
        assert left <= x
        assert x + w <= left + width
        assert top <= y
        assert y + h <= top + height
    for text in svg.iter(f"{SVG}text"):
        assert left < float(text.get("x")) < left + width
        assert top < float(text.get("y")) < top + height


def test_each_fragment_has_a_place_to_say_how_busy_it_is():
    svg = drawn(PLANS["single_learner_fine"](CONFIG, Resources(8, "gpu", 4)))
    for group in svg.iter(f"{SVG}g"):
        if group.get("class") == "fragment":
            assert [text.get("class") for text in group.iter(f"{SVG}text")] == [
                "name",
                "where",
                "busy",
            ]


def test_a_name_is_text_and_never_markup():
    plan = PLANS["serial"](CONFIG, Resources(8, "cpu", 1))
    hostile = '<script>alert("x")</script>&'
    learner = dataclasses.replace(plan.learner, name=hostile)
    rename = {"learner": hostile}
    channels = tuple(
        dataclasses.replace(one, source=rename.get(one.source, one.source), target=rename.get(one.target, one.target))
        for one in plan.channels
    )
    others = tuple(one for one in plan.fragments if one is not plan.learner)
    svg = drawn(dataclasses.replace(plan, fragments=(*others, learner), channels=channels))
    assert not list(svg.iter(f"{SVG}script"))
    assert hostile in [text.text for text in svg.iter(f"{SVG}text")]


def test_draw_plan_is_deterministic(tmp_path):
    for name in ("one.svg", "two.svg"):
        draw_plan(*sized("central"), tmp_path / name, "gpu")
    drawn = (tmp_path / "one.svg").read_bytes()
    assert drawn.startswith(b"<svg")
    assert drawn == (tmp_path / "two.svg").read_bytes()
    draw_plan(*sized("central", dataclasses.replace(CONFIG, num_envs=32)), tmp_path / "three.svg", "gpu")
    assert (tmp_path / "three.svg").read_bytes() != drawn


def test_draw_plan_has_its_style_and_sizes(tmp_path):
    plan, sizes = sized("serial")
    draw_plan(plan, sizes, tmp_path / "plan.svg", "gpu")
    svg = ElementTree.parse(tmp_path / "plan.svg").getroot()
    texts = " ".join(text.text or "" for text in svg.iter(f"{SVG}text"))
    for channel, size in zip(plan.channels, sizes.channels, strict=True):
        assert f"{channel.capacity} x {format_bytes(size.item)}" in texts
    assert ".carries" in svg.find(f"{SVG}style").text


def test_draw_plan_rejects_other_files(tmp_path):
    with pytest.raises(UserError, match=r"as \.svg: got .*plan\.png"):
        draw_plan(*sized("serial"), tmp_path / "plan.png")
    with pytest.raises(UserError, match="there is no directory .*nowhere"):
        draw_plan(*sized("serial"), tmp_path / "nowhere" / "plan.svg")


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


def extent(text, sizes):
    """Returns left, top, right and bottom of a text, in pixels, with the metrics of DejaVu Sans."""
    name = text.get("class")
    size, bold = sizes[name], name.startswith(("name", "carries"))
    font = FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")
    width = TextPath((0, 0), text.text, size=size, prop=font).get_extents().width
    left = float(text.get("x")) - {"start": 0.0, "middle": width / 2, "end": width}[text.get("text-anchor")]
    baseline = float(text.get("y"))
    return left, baseline - 0.76 * size, left + width, baseline + 0.2 * size


def overlap(one, other):
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def large_plans():
    plans = [policy(run_config(**LARGE), Resources(96, "gpu", 16)) for policy in PLANS.values()]
    return [*plans, plan_of(4), plan_of(3, learner_when_full="drop_oldest", inference_platform="cpu")]


@pytest.mark.parametrize("plan", large_plans(), ids=lambda plan: f"{plan.name}-{len(plan.learners)}")
def test_texts_of_a_plan_file_do_not_overlap(plan, tmp_path):
    layout = make_layout(SPEC, plan.shape, {"behavior_log_prob": ArraySpec((), "float32")})
    draw_plan(plan, bytes_of_plan(plan, layout, 6_700_000), tmp_path / "plan.svg", "gpu")
    svg = ElementTree.parse(tmp_path / "plan.svg").getroot()
    style = svg.find(f"{SVG}style").text
    rules = re.findall(r"^\.([\w.-]+) \{[^}]*font-size: ([\d.]+)px", style, re.MULTILINE)
    sizes = {names.replace(".", " "): float(size) for names, size in rules}
    assert min(sizes.values()) >= 11.0
    texts = [text for text in svg.iter(f"{SVG}text") if text.text]
    assert {channel.carries.value for channel in plan.channels} <= {text.text for text in texts}
    left, top, width, height = (float(number) for number in svg.get("viewBox").split())
    boxes = [(text.text, extent(text, sizes)) for text in texts]
    for words, box in boxes:
        assert left <= box[0] < box[2] <= left + width, words
        assert top <= box[1] < box[3] <= top + height, words
    for (one, here), (other, there) in itertools.combinations(boxes, 2):
        assert not overlap(here, there), f"{one!r} overlaps {other!r}"
