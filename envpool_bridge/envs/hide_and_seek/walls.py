"""Walls between the cells of a grid: rooms drawn at random, or one quadrant, with doors."""

import itertools
from typing import NamedTuple

import numpy as np

from envpool_bridge.envs.hide_and_seek.game import Base, RandomWalls

Cell = tuple[int, int]
_WALL_TRIES, _ROOM_TRIES = 10, 10


class Wall(NamedTuple):
    """A wall from one cell to another, both included, along x or y; outer walls are 4 m high, inner ones 0.5 m."""

    start: Cell
    end: Cell
    outer: bool = False

    @property
    def axis(self) -> int:
        """Axis of the wall: 0 along x, 1 along y."""
        return int(self.start[0] == self.end[0])

    @property
    def length(self) -> int:
        """Number of cells from the first to the last."""
        return self.end[self.axis] - self.start[self.axis]


class Walls(NamedTuple):
    """Walls of a layout, and its doors as the walls that are missing, from the cell before each to the cell after it."""

    pieces: list[Wall]
    doors: list[Wall]


class _Line:
    """A wall without doors, and the junctions of other walls, by side (-1: towards 0, 1: away from it)."""

    def __init__(self, wall: Wall) -> None:
        self.wall = wall
        self.junctions = {-1: [0, wall.length], 1: [0, wall.length]}

    def stretches(self) -> list[tuple[int, int]]:
        """Returns the parts between neighboring junctions of both sides."""
        places = sorted({*self.junctions[-1], *self.junctions[1]})
        return list(itertools.pairwise(places))


def outer_walls(cells: int) -> list[Wall]:
    """Returns the four walls around a floor of [cells, cells]."""
    last = cells - 1
    ends = [((0, 0), (0, last)), ((0, 0), (last, 0)), ((last, 0), (last, last)), ((0, last), (last, last))]
    return [Wall(start, end, outer=True) for start, end in ends]


def quadrant_walls(game: Base, rng: np.random.Generator) -> Walls:
    """Returns outer walls and those of the quadrant of large x and small y, of which one or both have a door."""
    middle, last = game.cells // 2, game.cells - 1
    inner = [Wall((middle, 0), (middle, middle)), Wall((middle, middle), (last, middle))]
    has_door = [True, True]
    if rng.random() < game.one_door:
        has_door[rng.integers(2)] = False
    walls = Walls(outer_walls(game.cells), [])
    for wall, opens in zip(inner, has_door, strict=True):
        if opens:
            _add_with_door(walls, _Line(wall), game.door_size, rng)
        else:
            walls.pieces.append(wall)
    return walls


def random_walls(game: RandomWalls, rng: np.random.Generator) -> Walls | None:
    """Returns walls of 1 to `rooms` rooms, a door in each inner one; None if the rooms do not fit."""
    rooms = int(rng.integers(1, game.rooms + 1)) if game.random_rooms else game.rooms
    for _ in range(_ROOM_TRIES):
        lines = [_Line(wall) for wall in outer_walls(game.cells)]
        if all(_add_wall(lines, game.min_room_size, rng) for _ in range(rooms - 1)):
            break
    else:
        return None
    walls = Walls([], [])
    for line in lines[4:]:
        _add_with_door(walls, line, game.door_size, rng)
    if rng.random() < game.outside_walls:
        walls.pieces[:0] = outer_walls(game.cells)
    return walls


def _add_wall(lines: list[_Line], min_room_size: int, rng: np.random.Generator) -> bool:
    """Adds a wall from a random one to a parallel one; returns whether one was added."""
    for _ in range(_WALL_TRIES):
        first = lines[rng.integers(len(lines))]
        proposals = []
        for second in lines:
            if second is first or second.wall.axis != first.wall.axis or first.wall.length < 2:
                continue
            offset = int(rng.integers(1, first.wall.length))
            wall = _between(first, second, offset, min_room_size)
            if wall is not None and not any(_crosses(wall, line.wall) for line in lines):
                proposals.append((wall, second, offset))
        if proposals:
            wall, second, offset = proposals[rng.integers(len(proposals))]
            side = _side(first.wall, second.wall)
            axis = first.wall.axis
            first.junctions[side].append(offset)
            second.junctions[-side].append(first.wall.start[axis] + offset - second.wall.start[axis])
            lines.append(_Line(wall))
            return True
    return False


def _between(first: _Line, second: _Line, offset: int, min_room_size: int) -> Wall | None:
    """Returns the wall from `first`, at `offset` from its start, across to `second`; None if impossible or too near others."""
    axis = first.wall.axis
    place, side = first.wall.start[axis] + offset, _side(first.wall, second.wall)
    if side == 0 or not second.wall.start[axis] <= place <= second.wall.end[axis]:
        return None
    if min(abs(offset - junction) for junction in first.junctions[side]) <= min_room_size:
        return None
    ends = sorted((first.wall.start[1 - axis], second.wall.start[1 - axis]))
    start, end = ((place, across) if axis == 0 else (across, place) for across in ends)
    return Wall(start, end)


def _side(first: Wall, second: Wall) -> int:
    """Returns the side of `first` on which the parallel wall `second` is; 0 for neither."""
    across = 1 - first.axis
    return int(np.sign(second.start[across] - first.start[across]))


def _crosses(a: Wall, b: Wall) -> bool:
    """Returns whether two perpendicular walls cross; touching walls do not."""
    return all(a.start[k] < b.end[k] and b.start[k] < a.end[k] for k in (0, 1))


def _add_with_door(walls: Walls, line: _Line, door_size: int, rng: np.random.Generator) -> None:
    """Adds the pieces of a wall next to a door in one of its stretches; the whole wall if all stretches are too short."""
    wall = line.wall
    wide_enough = [(low, high) for low, high in line.stretches() if high - low >= door_size + 1]
    if not wide_enough:
        walls.pieces.append(wall)
        return
    low, high = wide_enough[rng.integers(len(wide_enough))]
    first = low + int(rng.integers(1, high - low - door_size + 1))  # first cell of the door
    pieces = [(0, first - 1), (first + door_size, wall.length)]
    walls.pieces.extend(Wall(_at(wall, start), _at(wall, end)) for start, end in pieces if end > start)
    walls.doors.append(Wall(_at(wall, first - 1), _at(wall, first + door_size)))


def _at(wall: Wall, offset: int) -> Cell:
    x, y = wall.start
    return (x, y + offset) if wall.axis else (x + offset, y)
