"""Start of an episode: walls, and free places on a grid of cells, as in the MuJoCo game's `layout` and `placement`."""

from typing import Any

import numpy as np

from envpool_bridge.envs.hide_and_seek.game import CELL
from envpool_bridge.envs.hide_and_seek.layout import AGENT_SIZE, BOX_SIZE, LONG_BOX_SIZES, RAMP_SIZE
from envpool_bridge.envs.hide_and_seek.phases import (
    FEET,
    POSE_COLUMNS,
    POSE_COS,
    POSE_HALF_X,
    POSE_HALF_Y,
    POSE_SIN,
    POSE_X,
    POSE_Y,
    set_door,
    set_wall,
)
from envpool_bridge.envs.hide_and_seek.planar.compiled import compiled
from envpool_bridge.envs.hide_and_seek.planar.draws import below, between, uniform
from envpool_bridge.envs.hide_and_seek.planar.hands import inverse_inertia
from envpool_bridge.envs.hide_and_seek.planar.physics import place_middle, set_agent_mass
from envpool_bridge.envs.hide_and_seek.planar.rooms import (
    FROM_X,
    FROM_Y,
    TO_X,
    TO_Y,
    Plan,
    draw_quadrant,
    draw_rooms,
)
from envpool_bridge.envs.hide_and_seek.planar.state import (
    ARM,
    BODIES,
    BODY_COLUMNS,
    COS,
    HALF_X,
    HALF_Y,
    INV_INERTIA,
    INV_MASS,
    MAX_AGENTS,
    MAX_THINGS,
    MIDDLE_X,
    MIDDLE_Y,
    OFFSET,
    RADIUS,
    SIN,
    START_X,
    START_Y,
    THINGS,
    TOP,
    TURN,
    Rules,
    X,
    Y,
    Z,
)

_set_wall, _set_door = compiled(set_wall), compiled(set_door)
ATTEMPTS = 2000
_TRIES = 10  # places for a thing
_ANYWHERE, _IN_QUADRANT, _OUTSIDE_QUADRANT, _NEAR = range(4)
_BOX, _LONG, _THIN, _TOP = BOX_SIZE[0], LONG_BOX_SIZES[0][0], LONG_BOX_SIZES[0][1], BOX_SIZE[2]
_RAMP_OFFSET = -RAMP_SIZE / 6  # of the mass of a triangle from the middle of its base
_RAMP_ARM = 0.34  # metres: mean distance of the floor from the mass, weighted by the load of the four corners


@compiled
def write_poses(world: Any) -> None:
    """Keeps the last poses of all bodies, and writes the present ones, as `phases` describes them."""
    for number in range(world.num_agents + world.num_things):
        pose = world.now[number]
        for column in range(POSE_COLUMNS):
            world.before[number, column] = pose[column]
        if number < world.num_agents:
            body = world.body[number]
            pose[POSE_X], pose[POSE_Y], pose[FEET] = body[X], body[Y], body[Z]
            continue
        body = world.body[THINGS + number - world.num_agents]
        pose[POSE_X], pose[POSE_Y], pose[FEET] = body[MIDDLE_X], body[MIDDLE_Y], 0.0
        pose[POSE_COS], pose[POSE_SIN] = body[COS], body[SIN]
        pose[POSE_HALF_X], pose[POSE_HALF_Y] = body[HALF_X], body[HALF_Y]


@compiled
def clear(world: Any) -> None:
    """Forgets the last episode; contacts of it never continue."""
    for number in range(BODIES):
        world.awake[number] = 0
        for column in range(BODY_COLUMNS):
            world.body[number, column] = 0.0
    for thing in range(MAX_THINGS):
        world.locked[thing] = world.locker[thing] = 0
    for agent in range(MAX_AGENTS):
        world.held[agent], world.reward[agent] = -1, 0.0
    world.stats[:] = 0.0
    world.signals[:] = 0.0
    world.team_return[0] = world.team_return[1] = 0.0
    world.num_steps = world.prep_ended = world.rewarded_steps = world.seen_steps = 0
    world.discarded = 0
    world.time += 2


@compiled
def set_agent(world: Any, number: int, x: float, y: float) -> None:
    """Sets an agent on the floor, given its center."""
    agent = world.body[number]
    agent[X], agent[Y] = x, y
    set_agent_mass(agent)


@compiled
def set_thing(world: Any, number: int, at: Any, size: Any, is_ramp: bool) -> None:
    """Sets a box or a ramp, given the middle of its footprint and its size along x and y."""
    thing = world.body[THINGS + number]
    thing[HALF_X], thing[HALF_Y], thing[TOP] = size[0] / 2, size[1] / 2, _TOP
    thing[RADIUS] = np.sqrt(thing[HALF_X] ** 2 + thing[HALF_Y] ** 2)
    thing[OFFSET] = _RAMP_OFFSET if is_ramp else 0.0
    thing[ARM] = _RAMP_ARM if is_ramp else thing[RADIUS]
    thing[INV_MASS], thing[INV_INERTIA] = 1.0, inverse_inertia(thing)
    thing[X], thing[Y], thing[TURN] = at[0], at[1] + thing[OFFSET], 0.0
    thing[START_X], thing[START_Y] = at[0], at[1]
    place_middle(thing)


@compiled
def _fill(occupied: np.ndarray, corner: Any, size: Any, value: int) -> None:
    """Sets the cells from a corner on."""
    for x in range(corner[0], corner[0] + size[0]):
        for y in range(corner[1], corner[1] + size[1]):
            occupied[x, y] = value


@compiled
def _is_free(occupied: np.ndarray, corner: Any, size: Any) -> bool:
    for x in range(corner[0], corner[0] + size[0]):
        for y in range(corner[1], corner[1] + size[1]):
            if occupied[x, y]:
                return False
    return True


@compiled
def _occupy_walls(plan: Plan, cells: int) -> None:
    _fill(plan.occupied, (0, 0), (cells, cells), 0)
    for number in range(plan.sizes[0]):
        wall = plan.walls[number]
        size = (wall[TO_X] - wall[FROM_X] + 1, wall[TO_Y] - wall[FROM_Y] + 1)
        _fill(plan.occupied, (wall[FROM_X], wall[FROM_Y]), size, 1)


@compiled
def _ranges(rules: Rules, kind: int, size: Any, first: Any, random: np.ndarray) -> tuple[int, int, int, int]:
    """Returns the ranges of the cell of a thing of `size` cells along x and y: low and high, exclusive, for each axis."""
    cells, middle = rules.cells, rules.cells // 2
    if kind == _IN_QUADRANT:
        return cells - middle, cells - size[0] - 1, 1, middle - size[1] - 1
    if kind == _NEAR:
        reach = rules.together_cells
        return (
            max(1, first[0] - reach),
            min(cells - 1, first[0] + reach),
            max(1, first[1] - reach),
            min(cells - 1, first[1] + reach),
        )
    if kind == _OUTSIDE_QUADRANT:
        quadrant = below(random, 3)
        large_x, large_y = quadrant == 2, quadrant >= 1
        return (
            cells - middle if large_x else 1,
            cells - size[0] - 1 if large_x else middle - size[0] - 1,
            cells - middle if large_y else 1,
            cells - size[1] - 1 if large_y else middle - size[1] - 1,
        )
    return 1, cells - size[0] - 1, 1, cells - size[1] - 1


@compiled
def _place(
    plan: Plan, rules: Rules, footprint: Any, kind: int, first: Any, random: np.ndarray
) -> tuple[int, int, float, float]:
    """Occupies free cells; returns the lower left cell and the middle of the thing, or a negative cell if ten places are taken."""
    size = (int(np.ceil(footprint[0] / CELL - 1e-9)), int(np.ceil(footprint[1] / CELL - 1e-9)))
    for _ in range(_TRIES):
        low_x, high_x, low_y, high_y = _ranges(rules, kind, size, first, random)
        if low_x >= high_x or low_y >= high_y:
            break
        x, y = between(random, low_x, high_x), between(random, low_y, high_y)
        if not _is_free(plan.occupied, (x, y), size):
            continue
        _fill(plan.occupied, (x, y), size, 1)
        slack_x, slack_y = size[0] * CELL - footprint[0], size[1] * CELL - footprint[1]
        at_x = x * CELL + uniform(random) * slack_x + footprint[0] / 2
        return x, y, at_x, y * CELL + uniform(random) * slack_y + footprint[1] / 2
    return -1, -1, 0.0, 0.0


@compiled
def _place_team(world: Any, plan: Plan, rules: Rules, start: int, end: int) -> bool:
    """Places agents from `start` to `end`; returns whether they fit."""
    first = (0, 0)
    for agent in range(start, end):
        kind = _OUTSIDE_QUADRANT if start > 0 and rules.base else _ANYWHERE
        if agent > start and rules.together:
            kind = _NEAR
        x, y, at_x, at_y = _place(plan, rules, (AGENT_SIZE, AGENT_SIZE), kind, first, world.random)
        if x < 0:
            return False
        if agent == start:
            first = (x, y)
        set_agent(world, agent, at_x, at_y)
    return True


@compiled
def _place_boxes(world: Any, plan: Plan, rules: Rules) -> bool:
    """Places boxes long in x, then those long in y, then the others; returns whether they fit."""
    random = world.random
    count = between(random, rules.fewest_boxes, rules.most_boxes + 1)
    elongated = between(random, rules.fewest_elongated, min(rules.most_elongated, count) + 1)
    along_x = between(random, 0, elongated + 1)
    world.num_boxes = count
    for number in range(count):
        size = (_BOX, _BOX)
        if number < elongated:
            size = (_LONG, _THIN) if number < along_x else (_THIN, _LONG)
        kind = _IN_QUADRANT if rules.base else _ANYWHERE
        x, _, at_x, at_y = _place(plan, rules, size, kind, (0, 0), random)
        if x < 0:
            return False
        set_thing(world, number, (at_x, at_y), size, False)
    return True


@compiled
def _place_ramps(world: Any, plan: Plan, rules: Rules) -> bool:
    world.num_things = world.num_boxes + rules.ramps
    for number in range(world.num_boxes, world.num_things):
        x, _, at_x, at_y = _place(plan, rules, (RAMP_SIZE, RAMP_SIZE), _ANYWHERE, (0, 0), world.random)
        if x < 0:
            return False
        set_thing(world, number, (at_x, at_y), (RAMP_SIZE, RAMP_SIZE), True)
    return True


@compiled
def place(world: Any) -> None:
    """Starts an episode with the walls of a world and its poses, boxes before ramps."""
    clear(world)
    for number in range(world.num_agents):
        set_agent(world, number, world.now[number, POSE_X], world.now[number, POSE_Y])
    for number in range(world.num_things):
        pose = world.now[world.num_agents + number]
        size = (2.0 * pose[POSE_HALF_X], 2.0 * pose[POSE_HALF_Y])
        set_thing(world, number, (pose[POSE_X], pose[POSE_Y]), size, number >= world.num_boxes)
    write_poses(world)


@compiled
def begin(world: Any, rules: Rules, plan: Plan) -> bool:
    """Draws a layout, again if a thing does not fit; returns False if no attempt succeeded."""
    random = world.random
    for _ in range(ATTEMPTS):
        clear(world)
        if rules.base:
            draw_quadrant(plan, rules, random)
        elif not draw_rooms(plan, rules, random):
            continue
        _occupy_walls(plan, rules.cells)
        hiders, seekers = rules.hiders, rules.seekers
        if rules.random_team_sizes:
            hiders, seekers = between(random, 1, hiders + 1), between(random, 1, seekers + 1)
        world.num_hiders, world.num_agents = hiders, hiders + seekers
        if not _place_team(world, plan, rules, 0, hiders):
            continue
        if not _place_team(world, plan, rules, hiders, hiders + seekers):
            continue
        if not (_place_boxes(world, plan, rules) and _place_ramps(world, plan, rules)):
            continue
        world.num_walls = plan.sizes[0]
        for number in range(world.num_walls):
            _set_wall(world.wall[number], plan.walls[number])
        world.num_doors = plan.sizes[2]
        for number in range(world.num_doors):
            _set_door(world.door[number], plan.doors[number])
        write_poses(world)
        return True
    return False
