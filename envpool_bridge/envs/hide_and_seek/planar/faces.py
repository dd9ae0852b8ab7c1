"""Contacts of rectangles, boxes and ramps with each other and with walls: separating axes and clipped edges, up to two points.

Source: Catto 2006, "Fast and simple physics using sequential impulses" (GDC).
"""

from typing import Any

import numpy as np

from envpool_bridge.envs.hide_and_seek.planar.compiled import compiled
from envpool_bridge.envs.hide_and_seek.planar.contacts import BOX_FRICTION, SMOOTH_FRICTION, bias_of
from envpool_bridge.envs.hide_and_seek.planar.solver import Contacts, add_contact
from envpool_bridge.envs.hide_and_seek.planar.state import (
    COS,
    FACE_WALLS,
    FIXED,
    HALF_X,
    HALF_Y,
    INV_MASS,
    MIDDLE_X,
    MIDDLE_Y,
    RADIUS,
    SIN,
    SPIN,
    THINGS,
    VX,
    VY,
    WALL_HALF_X,
    WALL_HALF_Y,
    WALL_X,
    WALL_Y,
    X,
    Y,
)

_PREFERENCE = 0.002  # metres: the first body's faces are taken unless others are farther apart by this
_NO_FACE = (1e9, 0, 1.0)


@compiled
def _widest_gap(d: Any, half: Any, other_half: Any, cos: float, sin: float) -> tuple[float, int, float]:
    """Returns the widest gap along an axis of a rectangle, the axis, and the side; `d` points to the other rectangle."""
    cos, sin = abs(cos), abs(sin)
    gap_x = abs(d[0]) - half[0] - other_half[0] * cos - other_half[1] * sin
    gap_y = abs(d[1]) - half[1] - other_half[0] * sin - other_half[1] * cos
    if gap_x >= gap_y:
        return gap_x, 0, (1.0 if d[0] >= 0.0 else -1.0)
    return gap_y, 1, (1.0 if d[1] >= 0.0 else -1.0)


@compiled
def _opposite_edge(half: Any, nx: float, ny: float) -> tuple[float, float, float, float, int]:
    """Returns the ends of a rectangle's edge that faces a normal most, in its frame, and the number of the edge."""
    if abs(nx) >= abs(ny):
        x = -half[0] if nx > 0.0 else half[0]
        return x, -half[1], x, half[1], (0 if nx > 0.0 else 1)
    y = -half[1] if ny > 0.0 else half[1]
    return -half[0], y, half[0], y, (2 if ny > 0.0 else 3)


@compiled
def _add(world: Any, contacts: Contacts, pair: Any, at: Any, normal: Any, seconds: float) -> None:
    """Adds one point.

    Args:
        world: Record of a world.
        contacts: Contacts of the world.
        pair: Bodies a and b, slot of the impulses, point, feature, and coefficient of friction.
        at: Point (x, y), and the gap.
        normal: Normal (x, y) from b to a.
        seconds: Length of the substep.
    """
    a, b, slot, point, feature, friction = pair
    x, y, gap = at
    body, thing, push, rub = world.body, a - THINGS, 0.0, 0.0
    if world.face_time[thing, slot, point] == world.time - 1 and world.face_feature[thing, slot, point] == feature:
        push, rub = world.face_impulse[thing, slot, point, 0], world.face_impulse[thing, slot, point, 1]
    world.face_time[thing, slot, point], world.face_feature[thing, slot, point] = world.time, feature
    arms = (x - body[a, X], y - body[a, Y], x - body[b, X], y - body[b, Y])
    rest = (bias_of(gap, seconds), friction, push, rub, 0.0)
    add_contact(body, contacts, (a, b, slot, point), (normal[0], normal[1], 0.0), arms, rest)


@compiled
def _clip(world: Any, contacts: Contacts, pair: Any, first: Any, other: Any, face: Any, seconds: float) -> int:
    """Adds the points of an edge that lie before a face; returns their number.

    Args:
        world: Record of a world.
        contacts: Contacts of the world.
        pair: Bodies a and b, slot, coefficient of friction, largest gap, and whether the face belongs to b.
        first: Middle, cos, sin and half sizes (x, y, cos, sin, half_x, half_y) of the rectangle of the face.
        other: Same numbers of the other rectangle.
        face: Gap, axis and side of the face.
        seconds: Length of the substep.
    """
    a, b, slot, friction, margin, of_b = pair
    cos, sin = first[2] * other[2] + first[3] * other[3], first[2] * other[3] - first[3] * other[2]
    x, y = other[0] - first[0], other[1] - first[1]
    x, y = first[2] * x + first[3] * y, first[2] * y - first[3] * x
    axis, side = face[1], face[2]
    nx, ny = (side, 0.0) if axis == 0 else (0.0, side)
    x1, y1, x2, y2, edge = _opposite_edge((other[4], other[5]), cos * nx + sin * ny, cos * ny - sin * nx)
    x1, y1, x2, y2 = (
        x + cos * x1 - sin * y1,
        y + sin * x1 + cos * y1,
        x + cos * x2 - sin * y2,
        y + sin * x2 + cos * y2,
    )
    start, end, half = (y1, y2, first[5]) if axis == 0 else (x1, x2, first[4])
    if (start > half and end > half) or (start < -half and end < -half):
        return 0
    sign = 1.0 if of_b else -1.0
    normal = (sign * (first[2] * nx - first[3] * ny), sign * (first[3] * nx + first[2] * ny))
    feature = 16 * of_b + 8 * axis + (4 if side > 0.0 else 0) + edge * 32
    length, added = end - start, 0
    for point in range(2):
        place = start if point == 0 else end
        part = float(point)
        if abs(length) > 1e-12:
            part = (min(max(place, -half), half) - start) / length
        px, py = x1 + part * (x2 - x1), y1 + part * (y2 - y1)
        gap = side * (px if axis == 0 else py) - (first[4] if axis == 0 else first[5])
        if gap < margin:
            px, py = px - 0.5 * gap * nx, py - 0.5 * gap * ny
            at = (first[0] + first[2] * px - first[3] * py, first[1] + first[3] * px + first[2] * py, gap)
            _add(world, contacts, (a, b, slot, point, feature, friction), at, normal, seconds)
            added += 1
    return added


@compiled
def _touch(world: Any, contacts: Contacts, pair: Any, first: Any, other: Any, seconds: float) -> int:
    """Adds the contacts of a thing and a thing or wall (bodies, slot, friction, margin); returns their number."""
    cos, sin = first[2] * other[2] + first[3] * other[3], first[2] * other[3] - first[3] * other[2]
    x, y = other[0] - first[0], other[1] - first[1]
    half, other_half = (first[4], first[5]), (other[4], other[5])
    own = _widest_gap((first[2] * x + first[3] * y, first[2] * y - first[3] * x), half, other_half, cos, sin)
    if own[0] > pair[4]:
        return 0
    towards = (-other[2] * x - other[3] * y, other[3] * x - other[2] * y)
    its = _widest_gap(towards, other_half, half, cos, sin)
    if its[0] > pair[4]:
        return 0
    a, b, slot, friction, margin = pair
    if its[0] > own[0] + _PREFERENCE:
        return _clip(world, contacts, (a, b, slot, friction, margin, 1), other, first, its, seconds)
    return _clip(world, contacts, (a, b, slot, friction, margin, 0), first, other, own, seconds)


@compiled
def _rectangle(thing: Any) -> tuple[float, float, float, float, float, float]:
    return thing[MIDDLE_X], thing[MIDDLE_Y], thing[COS], thing[SIN], thing[HALF_X], thing[HALF_Y]


@compiled
def _reach(thing: Any, seconds: float) -> float:
    """Returns metres that a point of a thing may move in this substep."""
    speed = np.sqrt(thing[VX] * thing[VX] + thing[VY] * thing[VY]) + abs(thing[SPIN]) * thing[RADIUS]
    return 0.01 + seconds * speed


@compiled
def touch_each_other(world: Any, contacts: Contacts, thing: int, seconds: float) -> None:
    """Adds the contacts of a thing with things before it, and wakes both."""
    body, number = world.body, thing - THINGS
    for other in range(THINGS, thing):
        if not (world.awake[thing] or world.awake[other]):
            continue
        if body[thing, INV_MASS] + body[other, INV_MASS] == 0.0:
            continue
        x, y = body[thing, MIDDLE_X] - body[other, MIDDLE_X], body[thing, MIDDLE_Y] - body[other, MIDDLE_Y]
        margin = _reach(body[thing], seconds) + _reach(body[other], seconds)
        if x * x + y * y > (body[thing, RADIUS] + body[other, RADIUS] + margin) ** 2:
            continue
        ramps = number >= world.num_boxes and other - THINGS >= world.num_boxes
        pair = (thing, other, other - THINGS, SMOOTH_FRICTION if ramps else BOX_FRICTION, margin)
        if _touch(world, contacts, pair, _rectangle(body[thing]), _rectangle(body[other]), seconds):
            world.awake[thing] = world.awake[other] = 1


@compiled
def touch_walls(world: Any, contacts: Contacts, thing: int, friction: float, seconds: float) -> None:
    """Adds the contacts of a thing with walls."""
    body = world.body
    margin = _reach(body[thing], seconds)
    far = body[thing, RADIUS] + margin
    if thing - THINGS < world.num_boxes:
        friction = max(friction, BOX_FRICTION)
    for number in range(world.num_walls):
        wall = world.wall[number]
        x, y = body[thing, MIDDLE_X] - wall[WALL_X], body[thing, MIDDLE_Y] - wall[WALL_Y]
        if abs(x) > wall[WALL_HALF_X] + far or abs(y) > wall[WALL_HALF_Y] + far:
            continue
        rectangle = (wall[WALL_X], wall[WALL_Y], 1.0, 0.0, wall[WALL_HALF_X], wall[WALL_HALF_Y])
        pair = (thing, FIXED, FACE_WALLS + number, friction, margin)
        _touch(world, contacts, pair, _rectangle(body[thing]), rectangle, seconds)
