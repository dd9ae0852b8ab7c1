"""Signals of the phases of learning, computed alike in both engines; numba compiles them where it is installed.

A pose is a row of a body: agents first, then boxes, then ramps. A wall is a row of its middle, half sizes and height, a
door a row of the middle and half sizes of the wall that is missing there. The floor is a grid of cells of 0.1 m with a ring
of two cells around it, for everything beyond.
"""

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from envpool_bridge.envs.hide_and_seek.game import CELL, Game
from envpool_bridge.envs.hide_and_seek.walls import Wall

POSE_X, POSE_Y, FEET, POSE_COS, POSE_SIN, POSE_HALF_X, POSE_HALF_Y = range(7)
POSE_COLUMNS = 7

# Places in game.SIGNAL_NAMES.
CHASED, RAMP_USE, SURFED, DOOR_CLOSING, SHELTERED, RAMP_DEFENCE = range(6)

_CELL, _RING = 0.1, 2  # metres; cells
_FREE, _BLOCKED, _REACHED = 0, 1, 2
_AGENT_RADIUS = 0.15
_THIN = 0.06  # metres around walls without which cells of a line of them would not touch
_ON_TOP, _ABOVE = 0.4, 0.25  # metres of an agent's feet: it stands on a box of 0.5 m; it is in the air or on something
_NEARER = 0.01  # metres in a step that are a chase
_SAMPLE = 0.05  # metres between samples of a door's opening
_DOORSTEP = 0.25  # metres from the middle of a door to a place in a room
_HALF_THICKNESS, _OUTER_TOP, _INNER_TOP = 0.05, 4.0, 0.5  # metres, of walls

_numba: Any = importlib.import_module("numba") if importlib.util.find_spec("numba") else None
_entry: Callable[[Any], Any] = _numba.njit(error_model="numpy", cache=True) if _numba else lambda function: function


def compiled(function: Any) -> Any:
    """Compiles a function as a part of an entry point: without wrappers for Python, and once for all constants in its arguments."""
    if _numba is None:
        return function
    part = _numba.njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
    resolve, plain = part.get_call_template, _numba.types.unliteral
    part.get_call_template = lambda args, kws: resolve([plain(kind) for kind in args], kws)
    return part


class Ground(NamedTuple):
    """Scratch for the floor of a game.

    Attributes:
        grid: [S, S] int8, the state of each cell.
        stack: [S * S, 2] int32 cells whose neighbors are to be visited.
        upright: [7] pose of a wall or door.
    """

    grid: np.ndarray
    stack: np.ndarray
    upright: np.ndarray


def make_ground(game: Game) -> Ground:
    """Returns scratch for the floor of a game."""
    side = round(game.cells * CELL / _CELL) + 2 * _RING
    upright = np.zeros(POSE_COLUMNS)
    upright[POSE_COS] = 1.0
    return Ground(np.zeros((side, side), np.int8), np.zeros((side * side, 2), np.int32), upright)


def rows_of_walls(walls: Sequence[Wall]) -> np.ndarray:
    """Returns [W, 5] the rows of walls, metres."""
    rows = np.zeros((len(walls), 5))
    for row, wall in zip(rows, walls, strict=True):
        set_wall(row, (*wall.start, *wall.end, int(wall.outer)))
    return rows


def rows_of_doors(doors: Sequence[Wall]) -> np.ndarray:
    """Returns [D, 4] the rows of doors, metres."""
    rows = np.zeros((len(doors), 4))
    for row, door in zip(rows, doors, strict=True):
        set_door(row, (*door.start, *door.end))
    return rows


def set_wall(row: np.ndarray, cells: Any) -> None:
    """Sets a wall from its first and last cell, (x, y) each, and whether it is an outer one."""
    from_x, from_y, to_x, to_y, outer = cells[0], cells[1], cells[2], cells[3], cells[4]
    row[0], row[1] = (from_x + to_x + 1) / 2 * CELL, (from_y + to_y + 1) / 2 * CELL
    length = (to_x - from_x + to_y - from_y) * CELL / 2 - _HALF_THICKNESS
    along_x = from_y == to_y
    row[2] = length if along_x else _HALF_THICKNESS
    row[3] = _HALF_THICKNESS if along_x else length
    row[4] = _OUTER_TOP if outer else _INNER_TOP


def set_door(row: np.ndarray, cells: Any) -> None:
    """Sets a door from the cells before and after it."""
    from_x, from_y, to_x, to_y = cells[0], cells[1], cells[2], cells[3]
    row[0], row[1] = (from_x + to_x + 1) / 2 * CELL, (from_y + to_y + 1) / 2 * CELL
    row[2], row[3] = (to_x - from_x) / 2 * CELL, (to_y - from_y) / 2 * CELL


@compiled
def _distance(pose: np.ndarray, x: float, y: float) -> float:
    """Returns the distance of a point from a footprint, 0 inside."""
    dx, dy = x - pose[POSE_X], y - pose[POSE_Y]
    along = abs(pose[POSE_COS] * dx + pose[POSE_SIN] * dy) - pose[POSE_HALF_X]
    across = abs(pose[POSE_COS] * dy - pose[POSE_SIN] * dx) - pose[POSE_HALF_Y]
    return np.sqrt(max(along, 0.0) ** 2 + max(across, 0.0) ** 2)


@compiled
def _passes_over(before: np.ndarray, now: np.ndarray, wall: np.ndarray) -> bool:
    """Returns whether an agent crossed the middle line of an inner wall from above."""
    if wall[4] != _INNER_TOP or max(before[FEET], now[FEET]) < _ABOVE:
        return False
    along, across = (0, 1) if wall[2] >= wall[3] else (1, 0)
    start, end = before[across] - wall[across], now[across] - wall[across]
    if start * end >= 0.0:
        return False
    at = before[along] + (now[along] - before[along]) * start / (start - end)
    return abs(at - wall[along]) <= wall[2 + along]


@_entry
def count_step(
    signals: np.ndarray, before: np.ndarray, now: np.ndarray, sees: np.ndarray, walls: np.ndarray, sizes: Any
) -> None:
    """Counts what seekers did in one step.

    Args:
        signals: [6], changed.
        before: [N, 7] poses at the start of the step.
        now: [N, 7] poses at its end.
        sees: [A, A] int64, whether an agent (row) sees another.
        walls: [W, 5].
        sizes: Numbers of hiders, agents and boxes, and whether the step is rewarded.
    """
    hiders, agents, boxes, rewarded = sizes
    chased = 0.0
    for seeker in range(hiders, agents):
        x, y = now[seeker, POSE_X], now[seeker, POSE_Y]
        for hider in range(hiders):
            was = np.hypot(before[seeker, 0] - before[hider, 0], before[seeker, 1] - before[hider, 1])
            if sees[seeker, hider] and was - np.hypot(x - now[hider, 0], y - now[hider, 1]) > _NEARER:
                chased = 1.0
        for wall in walls:
            if _passes_over(before[seeker], now[seeker], wall):
                signals[RAMP_USE] = 1.0
        if now[seeker, FEET] < _ON_TOP:
            continue
        for box in range(agents, agents + boxes):
            if _distance(now[box], x, y) == 0.0:
                signals[SURFED] += np.hypot(now[box, 0] - before[box, 0], now[box, 1] - before[box, 1])
    if rewarded:
        signals[CHASED] += chased


@compiled
def _cell_of(grid: np.ndarray, place: float) -> int:
    """Returns the cell of a coordinate; the outermost one beyond the floor."""
    return min(max(int(np.floor(place / _CELL)) + _RING, 0), grid.shape[0] - 1)


@compiled
def _block(grid: np.ndarray, pose: np.ndarray, margin: float) -> None:
    """Blocks the cells whose middles are nearer to a footprint than a margin."""
    far = np.hypot(pose[POSE_HALF_X], pose[POSE_HALF_Y]) + margin
    for x in range(_cell_of(grid, pose[POSE_X] - far), _cell_of(grid, pose[POSE_X] + far) + 1):
        for y in range(_cell_of(grid, pose[POSE_Y] - far), _cell_of(grid, pose[POSE_Y] + far) + 1):
            if _distance(pose, (x - _RING + 0.5) * _CELL, (y - _RING + 0.5) * _CELL) < margin:
                grid[x, y] = _BLOCKED


@compiled
def _block_upright(ground: Ground, rows: np.ndarray, margin: float) -> None:
    """Blocks the cells of walls or doors."""
    pose = ground.upright
    for row in rows:
        pose[POSE_X], pose[POSE_Y], pose[POSE_HALF_X], pose[POSE_HALF_Y] = row[0], row[1], row[2], row[3]
        _block(ground.grid, pose, margin)


@compiled
def _fill(ground: Ground, agents: np.ndarray, around: int) -> None:
    """Marks all free cells that are connected to those of agents, or to the free ones `around` them."""
    grid, stack = ground.grid, ground.stack
    side, count = grid.shape[0], 0
    for agent in agents:
        x, y = _cell_of(grid, agent[POSE_X]), _cell_of(grid, agent[POSE_Y])
        for at_x in range(max(x - around, 0), min(x + around + 1, side)):
            for at_y in range(max(y - around, 0), min(y + around + 1, side)):
                if grid[at_x, at_y] == _FREE:
                    grid[at_x, at_y] = _REACHED
                    stack[count, 0], stack[count, 1] = at_x, at_y
                    count += 1
    while count:
        count -= 1
        x, y = stack[count, 0], stack[count, 1]
        for step_x, step_y in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            at_x, at_y = x + step_x, y + step_y
            if 0 <= at_x < side and 0 <= at_y < side and grid[at_x, at_y] == _FREE:
                grid[at_x, at_y] = _REACHED
                stack[count, 0], stack[count, 1] = at_x, at_y
                count += 1


@compiled
def _is_reached(grid: np.ndarray, x: float, y: float) -> bool:
    return grid[_cell_of(grid, x), _cell_of(grid, y)] == _REACHED


@compiled
def _is_closed(door: np.ndarray, boxes: np.ndarray) -> bool:
    """Returns whether boxes leave no gap as wide as an agent on the middle line of a door."""
    half, gap = max(door[2], door[3]), 0.0
    count = int(2 * half / _SAMPLE + 0.5) + 2  # an opening is 0.05 m longer at each end
    for number in range(count):
        offset = (number - (count - 1) / 2) * _SAMPLE
        x = door[0] + (offset if door[2] >= door[3] else 0.0)
        y = door[1] + (0.0 if door[2] >= door[3] else offset)
        gap += _SAMPLE
        for box in boxes:
            if _distance(box, x, y) == 0.0:
                gap = 0.0
        if gap >= 2 * _AGENT_RADIUS - 1e-9:
            return False
    return True


@compiled
def _closes_doors(grid: np.ndarray, doors: np.ndarray, boxes: np.ndarray) -> bool:
    """Returns whether the reached rooms have doors, and a box is in each."""
    count = 0
    for door in doors:
        x = 0.0 if door[2] >= door[3] else _DOORSTEP
        y = _DOORSTEP if door[2] >= door[3] else 0.0
        if _is_reached(grid, door[0] + x, door[1] + y) or _is_reached(grid, door[0] - x, door[1] - y):
            if not _is_closed(door, boxes):
                return False
            count += 1
    return count > 0


@compiled
def _is_sheltered(ground: Ground, now: np.ndarray, walls: np.ndarray, hiders: int, agents: int) -> bool:
    """Returns whether no seeker can come to a hider on the floor without moving a thing."""
    grid = ground.grid
    grid[:] = _FREE
    _block_upright(ground, walls, _AGENT_RADIUS)
    for thing in range(agents, len(now)):
        _block(grid, now[thing], _AGENT_RADIUS)
    _fill(ground, now[hiders:agents], 1)
    for hider in range(hiders):
        for step_x in range(-1, 2):
            for step_y in range(-1, 2):
                if _is_reached(grid, now[hider, POSE_X] + step_x * _CELL, now[hider, POSE_Y] + step_y * _CELL):
                    return False
    return True


@_entry
def end_preparation(
    signals: np.ndarray,
    now: np.ndarray,
    locked: np.ndarray,
    walls: np.ndarray,
    doors: np.ndarray,
    sizes: Any,
    ground: Ground,
) -> None:
    """Writes the signals of the end of the preparation phase.

    Args:
        signals: [6], changed.
        now: [N, 7] poses.
        locked: [N - A] int64, whether a thing is locked.
        walls: [W, 5].
        doors: [D, 4].
        sizes: Numbers of hiders, agents and boxes.
        ground: Scratch for the floor.
    """
    hiders, agents, boxes = sizes
    grid = ground.grid
    grid[:] = _FREE
    _block_upright(ground, walls, _THIN)
    _block_upright(ground, doors, _THIN)
    _fill(ground, now[:hiders], 0)  # the hiders' rooms
    alone = True
    for seeker in range(hiders, agents):
        alone = alone and not _is_reached(grid, now[seeker, POSE_X], now[seeker, POSE_Y])
    signals[DOOR_CLOSING] = alone and _closes_doors(grid, doors, now[agents : agents + boxes])
    first, defended = agents + boxes, 0.0
    for ramp in range(first, len(now)):
        if locked[ramp - agents] or (alone and _is_reached(grid, now[ramp, POSE_X], now[ramp, POSE_Y])):
            defended += 1.0
    signals[RAMP_DEFENCE] = defended / max(1, len(now) - first)
    signals[SHELTERED] = _is_sheltered(ground, now, walls, hiders, agents)
