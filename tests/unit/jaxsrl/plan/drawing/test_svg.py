"""The plan's drawing for the page: an element for every fragment and channel, inside the picture, whatever the names are."""

import dataclasses
from xml.etree import ElementTree

import pytest

from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.drawing.svg import plan_as_svg
from jaxsrl.plan.plan import plan_from_json, plan_to_json
from jaxsrl.plan.policies import POLICIES

SVG = "{http://www.w3.org/2000/svg}"
CONFIG = RunConfig(num_envs=16, num_env_workers=4, num_devices=2, num_inference_servers=2, num_inference_devices=2)


def drawn(plan):
    return ElementTree.fromstring(plan_as_svg(plan_from_json(plan_to_json(plan))))


@pytest.mark.parametrize("policy", ["single_learner_fine", "single_learner_coarse", "central", "decoupled", "serial"])
def test_every_fragment_and_channel_of_a_plan_is_drawn(policy):
    plan = POLICIES[policy](CONFIG, Resources(8, "gpu", 4))
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
    svg = drawn(POLICIES[policy](CONFIG, Resources(8, "gpu", 4)))
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
    svg = drawn(POLICIES["single_learner_fine"](CONFIG, Resources(8, "gpu", 4)))
    for group in svg.iter(f"{SVG}g"):
        if group.get("class") == "fragment":
            assert [text.get("class") for text in group.iter(f"{SVG}text")] == [
                "name",
                "where",
                "busy",
            ]


def test_a_name_is_text_and_never_markup():
    plan = POLICIES["serial"](CONFIG, Resources(8, "cpu", 1))
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
