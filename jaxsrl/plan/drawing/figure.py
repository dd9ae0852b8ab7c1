"""A plan as a picture, SVG or PNG. The same plan gives the same SVG, byte by byte."""

# matplotlib says only partly which types it takes:
# pyright: reportUnknownMemberType=false, reportArgumentType=false

from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch

from envpool_bridge.errors import UserError
from jaxsrl.plan.cost.channel_bytes import ChannelBytes, PlanBytes
from jaxsrl.plan.drawing.group_layout import place_learners, place_learners_channels
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
)
from jaxsrl.plan.drawing.text import bytes_in_words, lag_in_words, placement_in_words, slots_in_words
from jaxsrl.plan.fragment import Channel, Fragment, FragmentKind, WhenFull
from jaxsrl.plan.plan import Plan

# Of Okabe and Ito's palette, lightened: told apart by colour-blind readers and on paper.
_COLOURS = {
    FragmentKind.ENVIRONMENT: "#bfe3d0",
    FragmentKind.INFERENCE: "#bcdcf2",
    FragmentKind.REPLAY: "#f4f0a6",
    FragmentKind.LEARNER: "#fadcae",
    FragmentKind.PARAMETER_SERVER: "#ecc9dd",
}
_INK, _FAINT = "#222222", "#6b6b6b"
_STYLE = {"font.family": "DejaVu Sans", "svg.hashsalt": "jaxsrl", "svg.fonttype": "path"}


def draw_plan(plan: Plan, sizes: PlanBytes, path: Path, platform: str = "device") -> None:
    """Draws the plan into `path`, 1200 x 700 pixels.

    Args:
        plan: to draw.
        sizes: of its channels and slots.
        path: ends in .svg or .png.
        platform: what jax's default platform is, for placements that do not name theirs.

    Raises:
        UserError: another ending, or a directory that is not there.
    """
    kind = path.suffix.removeprefix(".").lower()
    if kind not in ("svg", "png"):
        raise UserError(f"a plan is drawn as .svg or .png: got {path}")
    if not path.parent.is_dir():
        raise UserError(f"there is no directory {path.parent} to draw {path.name} in: make it first")
    with matplotlib.rc_context(_STYLE):
        figure = draw_figure(plan, sizes, platform)
        figure.savefig(path, format=kind, metadata={"Date": None} if kind == "svg" else None)


def draw_figure(plan: Plan, sizes: PlanBytes, platform: str = "device") -> Figure:
    """The drawing as matplotlib's figure, in inches."""
    figure = Figure((WIDTH, HEIGHT), dpi=100, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(0, HEIGHT)
    axes.set_axis_off()
    figure.text(0.03, 0.945, plan.policy, fontsize=18, fontweight="bold", color=_INK, va="center")
    steps = f"{plan.num_rows} rows, trajectories of {plan.shape.rollout_length} steps, lag {plan.max_policy_lag}"
    figure.text(0.03, 0.895, f"{steps}; {slots_in_words(plan, sizes)}", fontsize=10.5, color=_FAINT, va="center")
    if len(plan.learners) > 1:
        boxes = place_learners(plan)
        arrows = place_learners_channels(plan, boxes)
    else:
        boxes = place_fragments(plan, platform)
        arrows = place_channels(plan, boxes)
    for group in place_groups(plan, boxes, platform):
        _draw_group(figure, group)
    for arrow in arrows:
        _draw_channel(figure, arrow, plan.channels[arrow.channel], sizes.channels[arrow.channel])
    for fragment in plan.fragments:
        _draw_fragment(figure, fragment, boxes[fragment.name], platform)
    _draw_legend(figure, plan)
    return figure


def _draw_group(figure: Figure, group: Group) -> None:
    _rectangle(figure, group.box, "#f6f6f4", "#c9c9c4", zorder=0, rounding=0.12)
    figure.axes[0].text(
        group.box.left + 0.15, group.box.top - 0.2, group.title, fontsize=10, color=_FAINT, va="center", style="italic"
    )


def _draw_fragment(figure: Figure, fragment: Fragment, box: Box, platform: str) -> None:
    colour = _COLOURS[fragment.kind]
    for behind in range(min(fragment.replicas, MAX_STACKED) - 1, -1, -1):
        shift = behind * STACK_OFFSET
        shifted = Box(box.left + shift, box.bottom + shift, box.right + shift, box.top + shift)
        _rectangle(figure, shifted, colour, _INK, zorder=4, rounding=0.1)
    x, y = (box.left + box.right) / 2, (box.bottom + box.top) / 2
    axes = figure.axes[0]
    above, below = (0.3, -0.3) if fragment.replicas > 1 else (0.16, -0.16)
    axes.text(
        x, y + above, fragment.name, fontsize=13, fontweight="bold", color=_INK, ha="center", va="center", zorder=5
    )
    if fragment.replicas > 1:
        axes.text(x, y, f"{fragment.replicas} replicas", fontsize=10.5, color=_INK, ha="center", va="center", zorder=5)
    where = placement_in_words(fragment, platform)
    axes.text(x, y + below, where, fontsize=10.5, color=_INK, ha="center", va="center", zorder=5)


def _draw_channel(figure: Figure, arrow: Arrow, channel: Channel, size: ChannelBytes) -> None:
    axes = figure.axes[0]
    loose = _is_loose(channel)
    style = {
        "arrowstyle": "-|>",
        "color": _INK,
        "linewidth": 1.5,
        "linestyle": "--" if loose else "-",
        "shrinkA": 0,
        "shrinkB": 0,
    }
    axes.annotate("", xy=arrow.end, xytext=arrow.start, arrowprops={**style, "mutation_scale": 15}, zorder=3)
    transport = channel.transport.value.replace("_", " ")
    amount = f"{channel.capacity} x {bytes_in_words(size.item)}"
    details = [transport, amount, lag_in_words(channel), "" if channel.synchronous else "not waited for"]
    details += ["drops oldest"] if channel.when_full is WhenFull.DROP_OLDEST else []
    details = [detail for detail in details if detail]
    x, y = (arrow.start[0] + arrow.end[0]) / 2, (arrow.start[1] + arrow.end[1]) / 2
    if arrow.is_vertical:
        beside, side = x + 0.12 * arrow.label_side, "left" if arrow.label_side > 0 else "right"
        rest = "\n".join(details)
        axes.text(
            beside, y + 0.32, channel.carries.value, fontsize=11, fontweight="bold", color=_INK, ha=side, va="center"
        )
        axes.text(beside, y + 0.18, rest, fontsize=9.5, color=_FAINT, ha=side, va="top", linespacing=1.25)
        return
    axes.text(x, y + 0.13, channel.carries.value, fontsize=11, fontweight="bold", color=_INK, ha="center", va="center")
    lines = [", ".join(details[:2]), ", ".join(details[2:])]
    text = "\n".join(line for line in lines if line)
    axes.text(x, y - 0.06, text, fontsize=9.5, color=_FAINT, ha="center", va="top", linespacing=1.2)


def _is_loose(channel: Channel) -> bool:
    """A gradient that nobody waits for, and trajectories that may be dropped, do not couple the two ends."""
    return not channel.synchronous or channel.when_full is WhenFull.DROP_OLDEST


def _draw_legend(figure: Figure, plan: Plan) -> None:
    kinds = [kind for kind in FragmentKind if any(fragment.kind is kind for fragment in plan.fragments)]
    handles = [
        Line2D([], [], linestyle="", marker="s", markersize=11, markerfacecolor=_COLOURS[kind], markeredgecolor=_INK)
        for kind in kinds
    ]
    labels = [kind.value.replace("_", " ") for kind in kinds]
    handles.append(Line2D([], [], color=_INK))
    labels.append("one end waits for the other")
    if any(_is_loose(channel) for channel in plan.channels):
        handles.append(Line2D([], [], color=_INK, linestyle="--"))
        labels.append("neither waits")
    figure.legend(
        handles, labels, loc="lower left", bbox_to_anchor=(0.02, 0.015), ncols=len(labels), frameon=False, fontsize=10
    )


def _rectangle(figure: Figure, box: Box, fill: str, edge: str, zorder: int, rounding: float) -> None:
    shape = f"round,pad=0,rounding_size={rounding}"
    width, height = box.right - box.left, box.top - box.bottom
    figure.axes[0].add_patch(
        FancyBboxPatch(
            (box.left, box.bottom), width, height, boxstyle=shape, facecolor=fill, edgecolor=edge, zorder=zorder
        )
    )
