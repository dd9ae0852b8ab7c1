"""Layout of the drawing of a plan: arithmetic only, in inches.

Three columns of two rows. What is alone in its column spans both rows, so that every channel is a straight horizontal or
vertical arrow: environments left, inference above the learner, a parameter server right. Where the environments' processes
also act, inference is above the environments and the learner stands alone. A replay fragment lies between the environments and
the learner, which is then on the right. A fragment that prepares samples is below the learner.

A plan with several learners has three rows: inference above, the learners side by side in the middle, environments below. Every
channel is a straight vertical arrow: those between environments and inference pass left of the learners. Up to four learners have
room for all that is written.
"""

import dataclasses

from jaxsrl.plan.drawing.text import format_group
from jaxsrl.plan.fragment import Channel, Fragment, FragmentKind
from jaxsrl.plan.plan import Plan

WIDTH, HEIGHT = 12.0, 7.0
STACK_OFFSET = 0.07  # between replicas drawn behind one another
MAX_STACKED = 3
_ROWS = {
    "top": (3.8, 5.25),
    "bottom": (1.2, 2.65),
    "both": (1.2, 5.25),
    # Replay and learner next to a fragment that prepares samples share a strip, through which priorities pass.
    "upper": (2.9, 5.25),
    "lower": (1.2, 3.15),
    "lowest": (1.2, 2.05),
}
_GROUP_MARGIN = 0.25
_GROUP_TITLE = 0.35
# Labels lie above and below horizontal arrows, and on the outer sides of vertical ones.
_HORIZONTAL_SPACING, VERTICAL_SPACING = 0.76, 0.18
_LEFT, _RIGHT = 0.6, WIDTH - 0.6
_LEARNER_ROWS = {
    FragmentKind.ENVIRONMENT: (1.0, 1.75),
    FragmentKind.LEARNER: (2.85, 3.6),
    FragmentKind.INFERENCE: (4.75, 5.5),
}
_LEARNERS_BEGIN, _MAX_WIDTH, _GAP = 3.7, 2.5, 0.3
_PASSING = 2.0  # where channels pass the learners


@dataclasses.dataclass(frozen=True)
class Box:
    """A rectangle with its edges in inches from the lower left corner of the drawing."""

    left: float
    bottom: float
    right: float
    top: float

    @property
    def center(self) -> float:
        """Returns x of the middle."""
        return (self.left + self.right) / 2

    def overlaps(self, other: "Box") -> bool:
        """Returns whether they share an area."""
        across = self.left < other.right and other.left < self.right
        return across and self.bottom < other.top and other.bottom < self.top


@dataclasses.dataclass(frozen=True)
class Arrow:
    """A channel's arrow, from one box's edge to another's.

    Attributes:
        channel: index in the plan.
        start: x and y of its tail.
        end: x and y of its head.
        label_side: Side of the label of vertical arrows: -1 writes left of it, 1 right.
    """

    channel: int
    start: tuple[float, float]
    end: tuple[float, float]
    label_side: int

    @property
    def is_vertical(self) -> bool:
        """Returns whether it runs along a column."""
        return self.start[0] == self.end[0]


@dataclasses.dataclass(frozen=True)
class Group:
    """Fragments in the same kind of place, and the rectangle around them."""

    title: str
    box: Box


def place_fragments(plan: Plan, platform: str) -> dict[str, Box]:
    """Returns the box of each fragment, by name."""
    replays = plan.replay is not None
    columns = 3 if plan.parameter_server is not None or replays else 2
    acts_in_workers = not plan.is_offline and (
        _group(plan.inference, platform) == _group(plan.environments, platform) != _group(plan.learner, platform)
    )
    rows = {
        FragmentKind.ENVIRONMENT: (0, "bottom" if acts_in_workers else "both"),
        FragmentKind.INFERENCE: (0 if acts_in_workers else 1, "top"),
        FragmentKind.REPLAY: (1, "bottom" if plan.prepare is None else "lower"),
        FragmentKind.PREPARE: (2, "lowest"),
        FragmentKind.DATASET: (0, "bottom"),
        # With a server the upper row stays free for its parameters on their way to inference.
        FragmentKind.LEARNER: (2, "both" if plan.prepare is None else "upper")
        if replays
        else (1, "both" if acts_in_workers and columns == 2 else "bottom"),
        FragmentKind.PARAMETER_SERVER: (2, "both"),
    }
    first, last, width = (2.6, 9.3, 2.5) if columns == 2 else (1.4, 10.5, 2.1)
    boxes: dict[str, Box] = {}
    for fragment in plan.fragments:
        column, row = rows[fragment.kind]
        center = first + (last - first) * column / (columns - 1)
        bottom, top = _ROWS[row]
        boxes[fragment.name] = Box(center - width / 2, bottom, center + width / 2, top)
    return boxes


def place_groups(plan: Plan, boxes: dict[str, Box], platform: str) -> list[Group]:
    """Rectangles around fragments that share a kind of place; one each where a common one would enclose a stranger."""
    members: dict[str, list[str]] = {}
    for fragment in plan.fragments:
        members.setdefault(_group(fragment, platform), []).append(fragment.name)
    groups: list[Group] = []
    for title, names in members.items():
        around = _around([boxes[name] for name in names])
        strangers = [box for name, box in boxes.items() if name not in names]
        if any(around.overlaps(box) for box in strangers):
            groups += [Group(title, _around([boxes[name]])) for name in names]
        else:
            groups.append(Group(title, around))
    return groups


def place_channels(plan: Plan, boxes: dict[str, Box]) -> list[Arrow]:
    """Returns an arrow a channel; channels between the same two fragments lie side by side."""
    between: dict[frozenset[str], list[int]] = {}
    for index, channel in enumerate(plan.channels):
        between.setdefault(frozenset((channel.source, channel.target)), []).append(index)
    stacked = {fragment.name: with_replicas(fragment, boxes[fragment.name]) for fragment in plan.fragments}
    arrows: list[Arrow] = []
    for indices in between.values():
        for place, index in enumerate(indices):
            channel, offset = plan.channels[index], place - (len(indices) - 1) / 2
            source, target = ((boxes[name], stacked[name]) for name in (channel.source, channel.target))
            arrows.append(_arrow(index, source, target, _column(plan, channel, boxes), offset))
    return arrows


def place_learners(plan: Plan) -> dict[str, Box]:
    """Returns the box of each fragment of a plan with several learners, by name."""
    pitch = (_RIGHT - _LEARNERS_BEGIN) / len(plan.learners)
    half = min(_MAX_WIDTH, pitch - _GAP) / 2
    boxes: dict[str, Box] = {}
    for fragment in plan.fragments:
        bottom, top = _LEARNER_ROWS[fragment.kind]
        boxes[fragment.name] = Box(_LEFT, bottom, _RIGHT, top)
    for number, learner in enumerate(plan.learners):
        center = _LEARNERS_BEGIN + pitch * (number + 0.5)
        bottom, top = _LEARNER_ROWS[learner.kind]
        boxes[learner.name] = Box(center - half, bottom, center + half, top)
    return boxes


def with_replicas(fragment: Fragment, box: Box) -> Box:
    """Returns the fragment's box with the replicas drawn behind it."""
    stack = (min(fragment.replicas, MAX_STACKED) - 1) * STACK_OFFSET
    return Box(box.left, box.bottom, box.right + stack, box.top + stack)


def _column(plan: Plan, channel: Channel, boxes: dict[str, Box]) -> float | None:
    """Returns x of the column in which a channel is vertical; None for a horizontal one."""
    source, target = boxes[channel.source], boxes[channel.target]
    learners = [learner.name for learner in plan.learners]
    if len(learners) < 2:
        return source.center if source.left == target.left else None
    learner = next((boxes[name] for name in (channel.source, channel.target) if name in learners), None)
    return _PASSING if learner is None else learner.center


def _arrow(index: int, source: tuple[Box, Box], target: tuple[Box, Box], column: float | None, place: float) -> Arrow:
    """Returns the arrow of a channel.

    Args:
        index: Index of the channel in the plan.
        source: Box of the source, without and with replicas.
        target: Boxes of the target, likewise.
        column: x of a vertical arrow; None for a horizontal one.
        place: counted from the middle of parallel channels.
    """
    (inner, outer), (inner_target, outer_target) = source, target
    if column is not None:
        x, up = column + place * VERTICAL_SPACING, inner_target.bottom > inner.top
        ends = (outer.top, inner_target.bottom) if up else (inner.bottom, outer_target.top)
        return Arrow(index, (x, ends[0]), (x, ends[1]), -1 if place < 0 else 1)
    bottom, top = max(inner.bottom, inner_target.bottom), min(inner.top, inner_target.top)
    y = (bottom + top) / 2 - place * _HORIZONTAL_SPACING
    right = inner.left < inner_target.left
    ends = (outer.right, inner_target.left) if right else (inner.left, outer_target.right)
    return Arrow(index, (ends[0], y), (ends[1], y), 1)


def _around(boxes: list[Box]) -> Box:
    return Box(
        min(box.left for box in boxes) - _GROUP_MARGIN,
        min(box.bottom for box in boxes) - _GROUP_MARGIN,
        max(box.right for box in boxes) + _GROUP_MARGIN,
        max(box.top for box in boxes) + _GROUP_MARGIN + _GROUP_TITLE,
    )


def _group(fragment: Fragment, platform: str) -> str:
    return format_group(fragment.placement, platform)
