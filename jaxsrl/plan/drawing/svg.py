"""A plan as SVG: for a web page, whose style sheet themes it, or as a file of its own.

Every fragment is `<g class="fragment" data-fragment="NAME" data-kind="KIND">` with a `<text class="busy">` that a page may fill in.
"""

from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from envpool_bridge.errors import UserError
from jaxsrl.plan.drawing.layout import (
    HEIGHT,
    MAX_STACKED,
    STACK_OFFSET,
    WIDTH,
    Arrow,
    Box,
    Group,
    place_channels,
    place_fragments,
    place_groups,
    place_learners,
)
from jaxsrl.plan.drawing.text import format_lag, format_placement
from jaxsrl.plan.fragment import Channel, Fragment, WhenFull
from jaxsrl.plan.plan import Plan
from jaxsrl.terminal.format import format_bytes

if TYPE_CHECKING:
    from jaxsrl.plan.cost.channel_bytes import PlanBytes  # imports jax, which the web page does not need

_PER_INCH = 80.0
_MARGIN = 0.12
_LINE = 16.0
_LETTER = 10.0  # of a name, about, in pixels
# Colors from the palette of Okabe and Ito, lightened: distinct for color-blind readers and on paper.
_STYLE = """
svg { background: #fff; font-family: "DejaVu Sans", sans-serif; fill: #222 }
.place { fill: #f6f6f4; stroke: #c9c9c4 }
.place-name { fill: #6b6b6b; font-size: 12.5px }
.body { fill: #bfe3d0; stroke: #222 }
[data-kind=inference] .body { fill: #bcdcf2 }
[data-kind=replay] .body { fill: #f4f0a6 }
[data-kind=prepare] .body { fill: #d9d2ee }
[data-kind=learner] .body { fill: #fadcae }
[data-kind=parameter_server] .body { fill: #ecc9dd }
.name { font-size: 15.5px; font-weight: 650 }
.name.small { font-size: 12.5px }
.where { font-size: 12px }
.channel line { stroke: #222; stroke-width: 1.5 }
.channel.loose line { stroke-dasharray: 6 4 }
.carries { font-size: 11.8px; font-weight: 600 }
.detail { fill: #6b6b6b; font-size: 11.2px }
"""


def draw_plan(plan: Plan, sizes: "PlanBytes", path: Path, platform: str = "device") -> None:
    """Writes the drawing into an SVG file that needs no style sheet. The same plan gives the same bytes.

    Args:
        plan: Plan to draw.
        sizes: Sizes of its channels, written next to their arrows.
        path: ends in .svg.
        platform: jax's default platform, for placements that do not name theirs.

    Raises:
        UserError: If the path does not end in .svg, or its directory does not exist.
    """
    if path.suffix.lower() != ".svg":
        raise UserError(f"a plan is drawn as .svg: got {path}")
    if not path.parent.is_dir():
        raise UserError(f"there is no directory {path.parent} to draw {path.name} in: make it first")
    path.write_text(plan_as_svg(plan, platform, sizes, _STYLE))


def plan_as_svg(plan: Plan, platform: str = "device", sizes: "PlanBytes | None" = None, style: str = "") -> str:
    """Returns the drawing as a string that starts with `<svg`.

    Args:
        plan: Plan to draw.
        platform: jax's default platform, for placements that do not name theirs.
        sizes: Sizes of its channels, written next to their arrows; None to omit them.
        style: CSS to embed; "" if the page has it.
    """
    boxes = place_learners(plan) if len(plan.learners) > 1 else place_fragments(plan, platform)
    arrows = place_channels(plan, boxes)
    groups = place_groups(plan, boxes, platform)
    left = min(group.box.left for group in groups) - _MARGIN
    right = max(group.box.right for group in groups) + _MARGIN
    bottom = min(group.box.bottom for group in groups) - _MARGIN
    top = max(group.box.top for group in groups) + _MARGIN
    left, right, bottom, top = max(0.0, left), min(WIDTH, right), max(0.0, bottom), min(HEIGHT, top)
    corner = _point(left, top)
    size = ((right - left) * _PER_INCH, (top - bottom) * _PER_INCH)
    places = [f"{fragment.name} on {format_placement(fragment, platform)}" for fragment in plan.fragments]
    svg = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "class": "plan",
            "viewBox": f"{corner[0]:.1f} {corner[1]:.1f} {size[0]:.1f} {size[1]:.1f}",
            "role": "img",
            "aria-label": f"plan {plan.name}: {', '.join(places)}",
        },
    )
    if style:
        ElementTree.SubElement(svg, "style").text = style
    _arrow_head(svg)
    for group in groups:
        _draw_group(svg, group)
    for arrow in arrows:
        channel = plan.channels[arrow.channel]
        size = f"{channel.capacity} x {format_bytes(sizes.channels[arrow.channel].item)}" if sizes is not None else ""
        _draw_channel(svg, arrow, channel, size)
    for fragment in plan.fragments:
        _draw_fragment(svg, fragment, boxes[fragment.name], platform)
    return ElementTree.tostring(svg, encoding="unicode")


def _arrow_head(svg: ElementTree.Element) -> None:
    marker = ElementTree.SubElement(
        ElementTree.SubElement(svg, "defs"),
        "marker",
        {"id": "plan-arrow", "viewBox": "0 0 10 10", "refX": "9", "refY": "5", "orient": "auto"},
    )
    marker.attrib |= {"markerWidth": "9", "markerHeight": "9", "markerUnits": "userSpaceOnUse"}
    ElementTree.SubElement(marker, "path", {"class": "head", "d": "M0 0.8 L10 5 L0 9.2 Z"})


def _draw_group(svg: ElementTree.Element, group: Group) -> None:
    _rectangle(svg, group.box, "place", 10)
    x, y = _point(group.box.left + 0.16, group.box.top - 0.24)
    title = "devices" if group.title == "device devices" else group.title
    _text(svg, x, y, title, "place-name", "start")


def _draw_fragment(svg: ElementTree.Element, fragment: Fragment, box: Box, platform: str) -> None:
    parent = ElementTree.SubElement(
        svg, "g", {"class": "fragment", "data-fragment": fragment.name, "data-kind": fragment.kind.value}
    )
    for behind in range(min(fragment.replicas, MAX_STACKED) - 1, -1, -1):
        shift = behind * STACK_OFFSET
        shifted = Box(box.left + shift, box.bottom + shift, box.right + shift, box.top + shift)
        _rectangle(parent, shifted, "body", 8)
    x, y = _point(box.center, (box.bottom + box.top) / 2)
    where = format_placement(fragment, platform)
    if fragment.replicas > 1:
        where = f"{fragment.replicas} x {where}"
    apart = _LINE + 2 if box.top - box.bottom > 1 else _LINE - 1
    is_narrow = len(fragment.name) * _LETTER > (box.right - box.left) * _PER_INCH
    _text(parent, x, y + 5 - apart, fragment.name, "name small" if is_narrow else "name")
    _text(parent, x, y + 5, where, "where")
    _text(parent, x, y + 5 + apart, "", "busy")


def _draw_channel(svg: ElementTree.Element, arrow: Arrow, channel: Channel, size: str) -> None:
    loose = not channel.synchronous or channel.when_full is WhenFull.DROP_OLDEST
    parent = ElementTree.SubElement(svg, "g", {"class": "channel loose" if loose else "channel"})
    (x1, y1), (x2, y2) = _point(*arrow.start), _point(*arrow.end)
    ends = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    ElementTree.SubElement(parent, "line", {**ends, "marker-end": "url(#plan-arrow)"})
    x, y = (x1 + x2) / 2, (y1 + y2) / 2
    details = [channel.transport.value.replace("_", " "), size, format_lag(channel)]
    details += ["drops oldest"] if channel.when_full is WhenFull.DROP_OLDEST else []
    details += [] if channel.synchronous else ["not waited for"]
    details = [detail for detail in details if detail]
    if not arrow.is_vertical:
        _text(parent, x, y - 7, channel.carries.value, "carries")
        for number, words in enumerate((details[:2], details[2:])):
            if words:
                _text(parent, x, y + _LINE + 14 * number, ", ".join(words), "detail")
        return
    x, anchor = x + 9 * arrow.label_side, "start" if arrow.label_side > 0 else "end"
    y -= _LINE * (len(details) - 1) / 2
    _text(parent, x, y, channel.carries.value, "carries", anchor)
    for number, detail in enumerate(details, 1):
        _text(parent, x, y + _LINE * number, detail, "detail", anchor)


def _rectangle(parent: ElementTree.Element, box: Box, name: str, radius: int) -> None:
    x, y = _point(box.left, box.top)
    width, height = (box.right - box.left) * _PER_INCH, (box.top - box.bottom) * _PER_INCH
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}", "height": f"{height:.1f}"}
    ElementTree.SubElement(parent, "rect", {"class": name, **place, "rx": str(radius)})


def _text(parent: ElementTree.Element, x: float, y: float, text: str, name: str, anchor: str = "middle") -> None:
    attributes = {"class": name, "x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
    ElementTree.SubElement(parent, "text", attributes).text = text


def _point(x: float, y: float) -> tuple[float, float]:
    """Inches from the lower left corner, to pixels from the upper left."""
    return x * _PER_INCH, (HEIGHT - y) * _PER_INCH
