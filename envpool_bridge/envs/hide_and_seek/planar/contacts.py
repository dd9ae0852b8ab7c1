"""Contacts of agents, which are spheres, with the floor, walls, things and each other."""

from typing import Any

import numpy as np

from envpool_bridge.envs.hide_and_seek.layout import AGENT_SIZE
from envpool_bridge.envs.hide_and_seek.planar.compiled import compiled
from envpool_bridge.envs.hide_and_seek.planar.solver import FLOOR_FRICTION, Contacts, add_contact
from envpool_bridge.envs.hide_and_seek.planar.state import (
    COS,
    FIXED,
    HALF_X,
    HALF_Y,
    MIDDLE_X,
    MIDDLE_Y,
    NEAR_AGENTS,
    NEAR_THINGS,
    NEAR_WALLS,
    RADIUS,
    SIN,
    THINGS,
    TOP,
    VX,
    VY,
    VZ,
    WALL_HALF_X,
    WALL_HALF_Y,
    WALL_TOP,
    WALL_X,
    WALL_Y,
    X,
    Y,
    Z,
)

AGENT_RADIUS = AGENT_SIZE / 2
BOX_FRICTION, SMOOTH_FRICTION = 0.2, 0.01
_SLOP = 0.002  # metres of penetration that are left
_RATE, _PUSH_SPEED = 0.2, 2.0  # fraction of a penetration corrected in a substep; largest speed of it, m/s
_TOUCH = 0.005  # metres between surfaces below which they rub
_SLOPE = np.sqrt(0.5)


@compiled
def bias_of(gap: float, seconds: float) -> float:
    """Returns the bias of a contact: it stops bodies at the end of a gap, and pushes them out of each other."""
    if gap > 0.0:
        return gap / seconds
    return max(_RATE * min(gap + _SLOP, 0.0) / seconds, -_PUSH_SPEED)


@compiled
def _from_cuboid(half_x: float, half_y: float, top: float, at: Any) -> tuple[float, float, float, float]:
    """Returns the normal and the distance of a point (x, y, z) from a cuboid on the floor, in the cuboid's frame."""
    x, y, z = at
    dx = x - min(max(x, -half_x), half_x)
    dy = y - min(max(y, -half_y), half_y)
    dz = z - min(z, top)
    square = dx * dx + dy * dy + dz * dz
    if square > 1e-16:
        distance = np.sqrt(square)
        return dx / distance, dy / distance, dz / distance, distance
    deep_x, deep_y, deep_z = half_x - abs(x), half_y - abs(y), top - z
    if deep_z <= min(deep_x, deep_y):
        return 0.0, 0.0, 1.0, -deep_z
    if deep_x <= deep_y:
        return (1.0 if x >= 0.0 else -1.0), 0.0, 0.0, -deep_x
    return 0.0, (1.0 if y >= 0.0 else -1.0), 0.0, -deep_y


@compiled
def _from_ramp(half: float, top: float, at: Any) -> tuple[float, float, float, float]:
    """Returns the same for a ramp, which is as high as it is long and falls towards +y."""
    x, y, z = at
    dx = x - min(max(x, -half), half)
    over = (y + z - half) * _SLOPE  # distance above the plane of the slope
    if y < -half and (over <= 0.0 or z <= top):
        near_y, near_z = -half, min(z, top)
    elif over > 0.0:
        along = min(max((y + half + top - z) / (2.0 * top), 0.0), 1.0)
        near_y, near_z = -half + 2.0 * half * along, top - top * along
    elif dx != 0.0:
        near_y, near_z = y, z
    elif half - abs(x) < min(-over, y + half):
        return (1.0 if x >= 0.0 else -1.0), 0.0, 0.0, abs(x) - half
    elif -over <= y + half:
        return 0.0, _SLOPE, _SLOPE, over
    else:
        return 0.0, -1.0, 0.0, -(y + half)
    dy, dz = y - near_y, z - near_z
    distance = np.sqrt(dx * dx + dy * dy + dz * dz)
    if distance < 1e-8:
        return 0.0, _SLOPE, _SLOPE, 0.0
    return dx / distance, dy / distance, dz / distance, distance


@compiled
def _margin(body: np.ndarray, a: int, b: int, seconds: float) -> float:
    """Returns the gap below which two bodies may meet in this substep."""
    x, y, z = body[a, VX] - body[b, VX], body[a, VY] - body[b, VY], body[a, VZ] - body[b, VZ]
    return 0.02 + seconds * np.sqrt(x * x + y * y + z * z)


@compiled
def _add(world: Any, contacts: Contacts, pair: Any, normal: Any, gap_friction: Any, seconds: float) -> None:
    """Adds the contact of an agent.

    Args:
        world: Record of a world.
        contacts: Contacts of the world.
        pair: Agent, other body, and slot of the impulses.
        normal: Normal (x, y, z) towards the agent.
        gap_friction: Distance of the surfaces, metres, and coefficient of friction.
        seconds: Length of the substep.
    """
    a, b, slot = pair
    gap, friction = gap_friction
    body, push, rub_s, rub_t = world.body, 0.0, 0.0, 0.0
    if world.near_time[a, slot] == world.time - 1:
        kept = world.near_impulse[a, slot]
        push, rub_s, rub_t = kept[0], kept[1], kept[2]
    world.near_time[a, slot] = world.time
    # Agents are struck at their center.
    reach, turns = AGENT_RADIUS + gap, 1.0 if b >= THINGS else 0.0
    x = turns * (body[a, X] - normal[0] * reach - body[b, X])
    y = turns * (body[a, Y] - normal[1] * reach - body[b, Y])
    # Friction begins with contact: a fast agent that only passes an edge has none.
    rest = (bias_of(gap, seconds), friction if gap < _TOUCH else 0.0, push, rub_s, rub_t)
    add_contact(body, contacts, (a, b, slot, -1), normal, (0.0, 0.0, x, y), rest)


@compiled
def touch_floor(world: Any, contacts: Contacts, agent: int, seconds: float) -> None:
    """Adds the contact of an agent with the floor."""
    height, fall = world.body[agent, Z], max(-world.body[agent, VZ], 0.0)
    if height < 0.02 + seconds * fall:
        _add(world, contacts, (agent, FIXED, 0), (0.0, 0.0, 1.0), (height, FLOOR_FRICTION), seconds)


@compiled
def touch_walls(world: Any, contacts: Contacts, agent: int, friction: float, seconds: float) -> None:
    """Adds the contacts of an agent with walls."""
    body = world.body
    far = AGENT_RADIUS + _margin(body, agent, FIXED, seconds)
    for number in range(world.num_walls):
        wall = world.wall[number]
        x, y = body[agent, X] - wall[WALL_X], body[agent, Y] - wall[WALL_Y]
        if abs(x) > wall[WALL_HALF_X] + far or abs(y) > wall[WALL_HALF_Y] + far:
            continue
        at = (x, y, body[agent, Z] + AGENT_RADIUS)
        nx, ny, nz, distance = _from_cuboid(wall[WALL_HALF_X], wall[WALL_HALF_Y], wall[WALL_TOP], at)
        if distance < far:
            pair = (agent, FIXED, NEAR_WALLS + number)
            _add(world, contacts, pair, (nx, ny, nz), (distance - AGENT_RADIUS, friction), seconds)


@compiled
def touch_things(world: Any, contacts: Contacts, agent: int, seconds: float) -> None:
    """Adds the contacts of an agent with boxes and ramps."""
    body = world.body
    for number in range(world.num_things):
        thing = THINGS + number
        far = AGENT_RADIUS + _margin(body, agent, thing, seconds)
        x, y = body[agent, X] - body[thing, MIDDLE_X], body[agent, Y] - body[thing, MIDDLE_Y]
        if x * x + y * y > (body[thing, RADIUS] + far) ** 2:
            continue
        cos, sin = body[thing, COS], body[thing, SIN]
        at = (cos * x + sin * y, cos * y - sin * x, body[agent, Z] + AGENT_RADIUS)
        if number >= world.num_boxes:
            nx, ny, nz, distance = _from_ramp(body[thing, HALF_Y], body[thing, TOP], at)
            friction = SMOOTH_FRICTION
        else:
            nx, ny, nz, distance = _from_cuboid(body[thing, HALF_X], body[thing, HALF_Y], body[thing, TOP], at)
            friction = BOX_FRICTION
        if distance < far:
            world.awake[thing] = 1
            normal = (cos * nx - sin * ny, sin * nx + cos * ny, nz)
            _add(
                world,
                contacts,
                (agent, thing, NEAR_THINGS + number),
                normal,
                (distance - AGENT_RADIUS, friction),
                seconds,
            )


@compiled
def touch_agents(world: Any, contacts: Contacts, agent: int, seconds: float) -> None:
    """Adds the contacts of an agent with those before it."""
    body = world.body
    for other in range(agent):
        x, y, z = body[agent, X] - body[other, X], body[agent, Y] - body[other, Y], body[agent, Z] - body[other, Z]
        far = 2.0 * AGENT_RADIUS + _margin(body, agent, other, seconds)
        square = x * x + y * y + z * z
        if square > far * far:
            continue
        distance = np.sqrt(square)
        normal = (1.0, 0.0, 0.0) if distance < 1e-9 else (x / distance, y / distance, z / distance)
        gap = distance - 2.0 * AGENT_RADIUS
        _add(world, contacts, (agent, other, NEAR_AGENTS + other), normal, (gap, SMOOTH_FRICTION), seconds)
