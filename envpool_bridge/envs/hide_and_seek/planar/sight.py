"""Sight and lidar: rays from the agents' centers, which pass over lower walls and things."""

from typing import Any

import numpy as np

from envpool_bridge.envs.hide_and_seek.game import HALF_CONE, LIDAR_MISS
from envpool_bridge.envs.hide_and_seek.planar.compiled import compiled
from envpool_bridge.envs.hide_and_seek.planar.contacts import AGENT_RADIUS
from envpool_bridge.envs.hide_and_seek.planar.state import (
    COS,
    HALF_X,
    HALF_Y,
    MIDDLE_X,
    MIDDLE_Y,
    SIN,
    THINGS,
    TOP,
    TURN,
    WALL_HALF_X,
    WALL_HALF_Y,
    WALL_TOP,
    WALL_X,
    WALL_Y,
    X,
    Y,
    Z,
)

_COS_CONE = np.cos(HALF_CONE)
_TINY = 1e-12


def lidar_directions(rays: int) -> np.ndarray:
    """Returns the cosines and sines of the directions, [2, rays]; the first points towards +x."""
    angles = 2 * np.pi * np.arange(rays) / rays
    return np.stack([np.cos(angles), np.sin(angles)])


@compiled
def _clip(low: float, high: float, ray: Any, interval: Any) -> tuple[float, float]:
    """Clips a ray (start, direction along an axis), given between two times, to an interval of the axis."""
    start, direction = ray
    if abs(direction) < _TINY:
        return (low, high) if interval[0] <= start <= interval[1] else (1.0, 0.0)
    first, second = (interval[0] - start) / direction, (interval[1] - start) / direction
    return max(low, min(first, second)), min(high, max(first, second))


@compiled
def _hit_cuboid(half: Any, top: float, is_ramp: bool, start: Any, way: Any) -> float:
    """Returns when a ray in the frame of a wall, box or ramp first meets its surface, in lengths of `way`; infinity for never."""
    low, high = _clip(-np.inf, np.inf, (start[0], way[0]), (-half[0], half[0]))
    low, high = _clip(low, high, (start[1], way[1]), (-half[1], half[1]))
    low, high = _clip(low, high, (start[2], way[2]), (0.0, top))
    if is_ramp:
        low, high = _clip(low, high, (start[1] + start[2], way[1] + way[2]), (-np.inf, half[1]))
    if low > high or high <= 0.0:
        return np.inf
    return low if low > 0.0 else high


@compiled
def _hit_thing(world: Any, number: int, eye: Any, way: Any) -> float:
    """Returns when a ray meets a thing."""
    thing = world.body[THINGS + number]
    cos, sin = thing[COS], thing[SIN]
    x, y = eye[0] - thing[MIDDLE_X], eye[1] - thing[MIDDLE_Y]
    start = (cos * x + sin * y, cos * y - sin * x, eye[2])
    turned = (cos * way[0] + sin * way[1], cos * way[1] - sin * way[0], way[2])
    return _hit_cuboid((thing[HALF_X], thing[HALF_Y]), thing[TOP], number >= world.num_boxes, start, turned)


@compiled
def _hit_agent(world: Any, number: int, eye: Any, way: Any) -> float:
    """Returns when a ray meets an agent."""
    agent = world.body[number]
    x, y, z = agent[X] - eye[0], agent[Y] - eye[1], agent[Z] + AGENT_RADIUS - eye[2]
    square = way[0] * way[0] + way[1] * way[1] + way[2] * way[2]
    along = x * way[0] + y * way[1] + z * way[2]
    rest = along * along - square * (x * x + y * y + z * z - AGENT_RADIUS**2)
    if rest < 0.0:
        return np.inf
    root = np.sqrt(rest)
    if along - root > 0.0:
        return (along - root) / square
    return (along + root) / square if along + root > 0.0 else np.inf


@compiled
def _hit_wall(wall: np.ndarray, eye: Any, way: Any) -> float:
    """Returns when a ray meets a wall."""
    start = (eye[0] - wall[WALL_X], eye[1] - wall[WALL_Y], eye[2])
    return _hit_cuboid((wall[WALL_HALF_X], wall[WALL_HALF_Y]), wall[WALL_TOP], False, start, way)


@compiled
def _is_first(world: Any, agent: int, target: int, eye: Any, way: Any) -> bool:
    """Returns whether a ray meets the target, an agent or a thing by the number of its body, before everything else."""
    is_agent = target < THINGS
    reached = _hit_agent(world, target, eye, way) if is_agent else _hit_thing(world, target - THINGS, eye, way)
    if reached == np.inf:
        return False
    for number in range(world.num_walls):
        if _hit_wall(world.wall[number], eye, way) < reached:
            return False
    for number in range(world.num_things):
        if THINGS + number != target and _hit_thing(world, number, eye, way) < reached:
            return False
    for number in range(world.num_agents):
        if number not in (agent, target) and _hit_agent(world, number, eye, way) < reached:
            return False
    return True


@compiled
def _in_cone(world: Any, agent: int, x: float, y: float) -> bool:
    """Returns whether a place lies in the sight cone of an agent, seen from above; at turn 0 it looks towards -y."""
    away_x, away_y = x - world.body[agent, X], y - world.body[agent, Y]
    turn = world.body[agent, TURN]
    ahead = np.sin(turn) * away_x - np.cos(turn) * away_y
    return ahead >= _COS_CONE * np.sqrt(away_x * away_x + away_y * away_y)


@compiled
def _look(world: Any, agent: int) -> None:
    """Computes what an agent sees."""
    body = world.body
    eye = (body[agent, X], body[agent, Y], body[agent, Z] + AGENT_RADIUS)
    for other in range(world.num_agents):
        x, y = body[other, X], body[other, Y]
        sees = other == agent
        if not sees and _in_cone(world, agent, x, y):
            way = (x - eye[0], y - eye[1], body[other, Z] + AGENT_RADIUS - eye[2])
            sees = _is_first(world, agent, other, eye, way)
        world.sees_agent[agent, other] = sees
    for number in range(world.num_things):
        thing = THINGS + number
        x, y, height = body[thing, MIDDLE_X], body[thing, MIDDLE_Y], 0.5 * body[thing, TOP]
        sees = False
        if _in_cone(world, agent, x, y):
            if number >= world.num_boxes:  # the ray to a ramp ends in the middle of its mass
                x, y, height = body[thing, X], body[thing, Y], body[thing, TOP] / 3.0
            sees = _is_first(world, agent, thing, eye, (x - eye[0], y - eye[1], height - eye[2]))
        world.sees_thing[agent, number] = sees


@compiled
def _scan_rectangle(distance: np.ndarray, rays: np.ndarray, start: Any, half: Any, cos: float, sin: float) -> None:
    """Shortens lidar rays from `start` (in the frame of a turned rectangle) where they meet it."""
    for ray in range(distance.shape[0]):
        x, y = rays[0, ray], rays[1, ray]
        inverse_x, inverse_y = 1.0 / (cos * x + sin * y + 1e-30), 1.0 / (cos * y - sin * x + 1e-30)
        a, b = (-half[0] - start[0]) * inverse_x, (half[0] - start[0]) * inverse_x
        c, d = (-half[1] - start[1]) * inverse_y, (half[1] - start[1]) * inverse_y
        low_x, high_x = (a, b) if a < b else (b, a)
        low_y, high_y = (c, d) if c < d else (d, c)
        low = low_x if low_x > low_y else low_y
        high = high_x if high_x < high_y else high_y
        at = low if low > 0.0 else high
        is_hit = (low <= high) & (high > 0.0) & (at < distance[ray])
        distance[ray] = at if is_hit else distance[ray]


@compiled
def _scan_circle(distance: np.ndarray, rays: np.ndarray, x: float, y: float, square_radius: float) -> None:
    """Shortens lidar rays from 0 where they meet a circle."""
    for ray in range(distance.shape[0]):
        along = rays[0, ray] * x + rays[1, ray] * y
        rest = along * along - (x * x + y * y - square_radius)
        at = along - np.sqrt(max(rest, 0.0))
        distance[ray] = at if (rest >= 0.0) & (at > 0.0) & (at < distance[ray]) else distance[ray]


@compiled
def _scan(world: Any, agent: int, rays: np.ndarray) -> None:
    """Computes the lidar of an agent: distances at the height of its center."""
    body, distance = world.body, world.lidar[agent, : rays.shape[1]]
    height = body[agent, Z] + AGENT_RADIUS
    distance[:] = np.inf
    for number in range(world.num_walls):
        wall = world.wall[number]
        if height < wall[WALL_TOP]:
            start = (body[agent, X] - wall[WALL_X], body[agent, Y] - wall[WALL_Y])
            _scan_rectangle(distance, rays, start, (wall[WALL_HALF_X], wall[WALL_HALF_Y]), 1.0, 0.0)
    for number in range(world.num_things):
        thing = body[THINGS + number]
        if height >= thing[TOP]:
            continue
        x, y = body[agent, X] - thing[MIDDLE_X], body[agent, Y] - thing[MIDDLE_Y]
        cos, sin, half_y = thing[COS], thing[SIN], thing[HALF_Y]
        along = cos * y - sin * x
        if number >= world.num_boxes:  # at a height a ramp is shorter
            along += 0.5 * height
            half_y -= 0.5 * height
        _scan_rectangle(distance, rays, (cos * x + sin * y, along), (thing[HALF_X], half_y), cos, sin)
    for other in range(world.num_agents):
        square_radius = AGENT_RADIUS**2 - (body[other, Z] - body[agent, Z]) ** 2
        if other != agent and square_radius > 0.0:
            _scan_circle(
                distance, rays, body[other, X] - body[agent, X], body[other, Y] - body[agent, Y], square_radius
            )
    for ray in range(distance.shape[0]):
        if distance[ray] == np.inf:
            distance[ray] = LIDAR_MISS


@compiled
def see(world: Any, rays: np.ndarray) -> None:
    """Computes sight and lidar of all agents."""
    for agent in range(world.num_agents):
        _look(world, agent)
        _scan(world, agent, rays)
