"""Walls of an episode, as in the MuJoCo game's `walls`: one quadrant or rooms at random, with doors.

A wall is a row of integers: the cells of its start and end, and whether it is an outer one.
"""

from typing import Any, NamedTuple

import numpy as np

from envpool_bridge.envs.hide_and_seek.planar.compiled import compiled
from envpool_bridge.envs.hide_and_seek.planar.draws import below, between, uniform
from envpool_bridge.envs.hide_and_seek.planar.state import MAX_DOORS, MAX_WALLS, Rules

FROM_X, FROM_Y, TO_X, TO_Y, OUTER = range(5)
_LINES, _JUNCTIONS = 11, 24  # 4 outer walls and 7 inner ones; places on a side of one
_WALL_TRIES, _ROOM_TRIES = 10, 10
_LOW, _HIGH = 0, 1  # sides of a wall: towards 0, away from it


class Plan(NamedTuple):
    """Scratch of the drawing of one layout.

    Attributes:
        walls: [18, 5] pieces of walls, in the end.
        doors: [7, 5] walls that are missing, from the cell before each door to the cell after it.
        lines: [11, 5] walls without doors.
        junctions: [11, 2, 24] places along a line where others touch it, by side.
        counts: [11, 2] numbers of them.
        proposals: [11, 7] walls that may be added, with the line on the other side and the offset.
        occupied: [120, 120] cells.
        sizes: Number of pieces, number of lines, number of doors.
    """

    walls: np.ndarray
    doors: np.ndarray
    lines: np.ndarray
    junctions: np.ndarray
    counts: np.ndarray
    proposals: np.ndarray
    occupied: np.ndarray
    sizes: np.ndarray


def make_plan() -> Plan:
    """Returns room for any layout."""
    of_lines = (_LINES, 5), (_LINES, 2, _JUNCTIONS), (_LINES, 2), (_LINES, 7)
    shapes = (MAX_WALLS, 5), (MAX_DOORS, 5), *of_lines, (120, 120), (3,)
    return Plan(*(np.zeros(shape, np.int64) for shape in shapes))


@compiled
def _axis(wall: np.ndarray) -> int:
    """Returns 0 for a wall along x, 1 along y."""
    return int(wall[FROM_X] == wall[TO_X])


@compiled
def _length(wall: np.ndarray) -> int:
    return wall[TO_X] - wall[FROM_X] + wall[TO_Y] - wall[FROM_Y]


@compiled
def _set_wall(row: np.ndarray, start: Any, end: Any, outer: int) -> None:
    row[FROM_X], row[FROM_Y], row[TO_X], row[TO_Y], row[OUTER] = start[0], start[1], end[0], end[1], outer


@compiled
def _add_piece(plan: Plan, start: Any, end: Any, outer: int) -> None:
    _set_wall(plan.walls[plan.sizes[0]], start, end, outer)
    plan.sizes[0] += 1


@compiled
def _add_line(plan: Plan, start: Any, end: Any) -> None:
    number = plan.sizes[1]
    plan.sizes[1] = number + 1
    line = plan.lines[number]
    _set_wall(line, start, end, 0)
    for side in range(2):
        plan.counts[number, side] = 2
        plan.junctions[number, side, 0] = 0
        plan.junctions[number, side, 1] = _length(line)


@compiled
def _add_junction(plan: Plan, line: int, side: int, place: int) -> None:
    plan.junctions[line, side, plan.counts[line, side]] = place
    plan.counts[line, side] += 1


@compiled
def _outer(plan: Plan, cells: int, as_pieces: bool) -> None:
    """Adds the four walls around the floor, as pieces or as lines."""
    last = cells - 1
    for start, end in (((0, 0), (0, last)), ((0, 0), (last, 0)), ((last, 0), (last, last)), ((0, last), (last, last))):
        if as_pieces:
            _add_piece(plan, start, end, 1)
        else:
            _add_line(plan, start, end)


@compiled
def _next_junction(plan: Plan, line: int, after: int) -> int:
    """Returns the nearest junction of either side beyond a place; -1 for none."""
    nearest = -1
    for side in range(2):
        for number in range(plan.counts[line, side]):
            place = plan.junctions[line, side, number]
            if place > after and (nearest < 0 or place < nearest):
                nearest = place
    return nearest


@compiled
def _add_with_door(plan: Plan, line: int, door_size: int, random: np.ndarray) -> None:
    """Adds the pieces of a wall next to a door in one of its stretches; the whole wall if all stretches are too short."""
    wall = plan.lines[line]
    chosen_low, chosen_high, count, low = -1, -1, 0, 0
    while True:
        high = _next_junction(plan, line, low)
        if high < 0:
            break
        if high - low >= door_size + 1:
            count += 1
            if below(random, count) == 0:
                chosen_low, chosen_high = low, high
        low = high
    x, y, along_y = wall[FROM_X], wall[FROM_Y], _axis(wall)
    along_x, length = 1 - along_y, _length(wall)
    if count == 0:
        _add_piece(plan, (x, y), (wall[TO_X], wall[TO_Y]), 0)
        return
    door = chosen_low + between(random, 1, chosen_high - chosen_low - door_size + 1)
    before = x + along_x * (door - 1), y + along_y * (door - 1)
    after = x + along_x * (door + door_size), y + along_y * (door + door_size)
    _set_wall(plan.doors[plan.sizes[2]], before, after, 0)
    plan.sizes[2] += 1
    if door - 1 > 0:
        _add_piece(plan, (x, y), before, 0)
    if length > door + door_size:
        _add_piece(plan, after, (wall[TO_X], wall[TO_Y]), 0)


@compiled
def _side(first: np.ndarray, second: np.ndarray) -> int:
    """Returns the side of a wall on which a parallel one is; -1 for neither."""
    across = 1 - _axis(first)
    if second[FROM_X + across] == first[FROM_X + across]:
        return -1
    return _HIGH if second[FROM_X + across] > first[FROM_X + across] else _LOW


@compiled
def _propose(plan: Plan, pair: Any, offset: int, min_room_size: int, row: np.ndarray) -> bool:
    """Writes the wall from one line, at an offset from its start, across to a parallel one; returns whether it may stand there."""
    first, second = plan.lines[pair[0]], plan.lines[pair[1]]
    axis, side = _axis(first), _side(first, second)
    place = first[FROM_X + axis] + offset
    if side < 0 or not second[FROM_X + axis] <= place <= second[TO_X + axis]:
        return False
    for number in range(plan.counts[pair[0], side]):
        if abs(offset - plan.junctions[pair[0], side, number]) <= min_room_size:
            return False
    low, high = first[FROM_X + 1 - axis], second[FROM_X + 1 - axis]
    if low > high:
        low, high = high, low
    if axis == 0:
        _set_wall(row, (place, low), (place, high), 0)
    else:
        _set_wall(row, (low, place), (high, place), 0)
    for number in range(plan.sizes[1]):
        other = plan.lines[number]
        crosses_x = row[FROM_X] < other[TO_X] and other[FROM_X] < row[TO_X]
        if crosses_x and row[FROM_Y] < other[TO_Y] and other[FROM_Y] < row[TO_Y]:
            return False
    return True


@compiled
def _add_room(plan: Plan, min_room_size: int, random: np.ndarray) -> bool:
    """Adds a wall from a random line to a parallel one; returns whether one was added."""
    for _ in range(_WALL_TRIES):
        first = below(random, plan.sizes[1])
        line = plan.lines[first]
        axis, count = _axis(line), 0
        if _length(line) < 2:
            continue
        for second in range(plan.sizes[1]):
            if second == first or _axis(plan.lines[second]) != axis:
                continue
            offset = between(random, 1, _length(line))
            proposal = plan.proposals[count]
            if _propose(plan, (first, second), offset, min_room_size, proposal):
                proposal[5], proposal[6] = second, offset
                count += 1
        if count:
            chosen = plan.proposals[below(random, count)]
            second, offset = chosen[5], chosen[6]
            side = _side(line, plan.lines[second])
            _add_junction(plan, first, side, offset)
            _add_junction(plan, second, 1 - side, line[FROM_X + axis] + offset - plan.lines[second, FROM_X + axis])
            _add_line(plan, (chosen[FROM_X], chosen[FROM_Y]), (chosen[TO_X], chosen[TO_Y]))
            return True
    return False


@compiled
def draw_quadrant(plan: Plan, rules: Rules, random: np.ndarray) -> None:
    """Draws the walls of the quadrant game."""
    plan.sizes[:] = 0
    middle, last = rules.cells // 2, rules.cells - 1
    _outer(plan, rules.cells, True)
    _add_line(plan, (middle, 0), (middle, middle))
    _add_line(plan, (middle, middle), (last, middle))
    closed = -1
    if uniform(random) < rules.one_door:
        closed = below(random, 2)
    for line in range(2):
        wall = plan.lines[line]
        if line == closed:
            _add_piece(plan, (wall[FROM_X], wall[FROM_Y]), (wall[TO_X], wall[TO_Y]), 0)
        else:
            _add_with_door(plan, line, rules.door_size, random)


@compiled
def draw_rooms(plan: Plan, rules: Rules, random: np.ndarray) -> bool:
    """Draws the walls of 1 to `rooms` rooms; returns whether they fit."""
    rooms = between(random, 1, rules.rooms + 1) if rules.random_rooms else rules.rooms
    complete = False
    for _ in range(_ROOM_TRIES):
        plan.sizes[:] = 0
        _outer(plan, rules.cells, False)
        complete = True
        for _wall in range(rooms - 1):
            if not _add_room(plan, rules.min_room_size, random):
                complete = False
                break
        if complete:
            break
    if not complete:
        return False
    for line in range(4, plan.sizes[1]):
        _add_with_door(plan, line, rules.door_size, random)
    if uniform(random) < rules.outside_walls:
        _outer(plan, rules.cells, True)
    return True
