"""Layout of the drawing of a plan with several learners: arithmetic only, in inches.

Three rows: inference above, the learners side by side in the middle, environments below. Every channel is a straight vertical
arrow: those between environments and inference pass left of the learners. Up to four learners have room for all that is written.
"""

from jaxsrl.plan.drawing.layout import VERTICAL_SPACING, WIDTH, Arrow, Box, with_replicas
from jaxsrl.plan.fragment import Channel, FragmentKind
from jaxsrl.plan.plan import Plan

_LEFT, _RIGHT = 0.6, WIDTH - 0.6
_ROWS = {
    FragmentKind.ENVIRONMENT: (1.0, 1.75),
    FragmentKind.LEARNER: (2.85, 3.6),
    FragmentKind.INFERENCE: (4.75, 5.5),
}
_LEARNERS_BEGIN, _MAX_WIDTH, _GAP = 3.7, 2.5, 0.3
_PASSING = 2.0  # where channels pass the learners


def place_learners(plan: Plan) -> dict[str, Box]:
    """Returns the box of each fragment of a plan with several learners, by name."""
    pitch = (_RIGHT - _LEARNERS_BEGIN) / len(plan.learners)
    half = min(_MAX_WIDTH, pitch - _GAP) / 2
    boxes: dict[str, Box] = {}
    for fragment in plan.fragments:
        bottom, top = _ROWS[fragment.kind]
        boxes[fragment.name] = Box(_LEFT, bottom, _RIGHT, top)
    for number, learner in enumerate(plan.learners):
        center = _LEARNERS_BEGIN + pitch * (number + 0.5)
        bottom, top = _ROWS[learner.kind]
        boxes[learner.name] = Box(center - half, bottom, center + half, top)
    return boxes


def place_learners_channels(plan: Plan, boxes: dict[str, Box]) -> list[Arrow]:
    """Returns an arrow a channel; channels between the same two fragments lie side by side."""
    between: dict[frozenset[str], list[int]] = {}
    for index, channel in enumerate(plan.channels):
        between.setdefault(frozenset((channel.source, channel.target)), []).append(index)
    outer = {fragment.name: with_replicas(fragment, boxes[fragment.name]) for fragment in plan.fragments}
    learners = {learner.name for learner in plan.learners}
    arrows: list[Arrow] = []
    for ends, indices in between.items():
        narrow = [boxes[name] for name in ends & learners]
        center = (narrow[0].left + narrow[0].right) / 2 if narrow else _PASSING
        for place, index in enumerate(indices):
            offset = place - (len(indices) - 1) / 2
            arrows.append(_arrow(plan.channels[index], index, (boxes, outer), center, offset))
    return arrows


def _arrow(
    channel: Channel, index: int, boxes: tuple[dict[str, Box], dict[str, Box]], center: float, offset: float
) -> Arrow:
    """Boxes come without and with replicas."""
    inner, outer = boxes
    x = center + offset * VERTICAL_SPACING
    if inner[channel.source].top < inner[channel.target].bottom:
        start, end = outer[channel.source].top, inner[channel.target].bottom
    else:
        start, end = inner[channel.source].bottom, outer[channel.target].top
    return Arrow(index, (x, start), (x, end), -1 if offset < 0 else 1)
