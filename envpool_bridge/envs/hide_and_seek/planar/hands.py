"""Grips and locks, as in the MuJoCo game's `grips` and `locks`."""

from typing import Any

import numpy as np

from envpool_bridge.envs.hide_and_seek.game import REACH
from envpool_bridge.envs.hide_and_seek.planar.compiled import compiled
from envpool_bridge.envs.hide_and_seek.planar.contacts import AGENT_RADIUS
from envpool_bridge.envs.hide_and_seek.planar.draws import below
from envpool_bridge.envs.hide_and_seek.planar.physics import rest
from envpool_bridge.envs.hide_and_seek.planar.state import (
    COS,
    HALF_X,
    HALF_Y,
    INV_INERTIA,
    INV_MASS,
    MIDDLE_X,
    MIDDLE_Y,
    OFFSET,
    SIN,
    THINGS,
    TOP,
    TURN,
    X,
    Y,
    Z,
)


@compiled
def inverse_inertia(thing: np.ndarray) -> float:
    """Returns the inverse inertia of an unlocked thing of 1 kg; the mass of a ramp lies off the middle of its footprint."""
    x, y = 4.0 * thing[HALF_X] ** 2, 4.0 * thing[HALF_Y] ** 2
    return 1.0 / (x / 12.0 + (y / 12.0 if thing[OFFSET] == 0.0 else y / 18.0))


@compiled
def _distance(world: Any, agent: int, thing: int) -> float:
    """Returns metres from an agent's center to the cuboid around a thing."""
    body = world.body
    x, y = body[agent, X] - body[thing, MIDDLE_X], body[agent, Y] - body[thing, MIDDLE_Y]
    cos, sin = body[thing, COS], body[thing, SIN]
    beyond_x = max(abs(cos * x + sin * y) - body[thing, HALF_X], 0.0)
    beyond_y = max(abs(cos * y - sin * x) - body[thing, HALF_Y], 0.0)
    beyond_z = max(body[agent, Z] + AGENT_RADIUS - body[thing, TOP], 0.0)
    return np.sqrt(beyond_x * beyond_x + beyond_y * beyond_y + beyond_z * beyond_z)


@compiled
def _reaches(world: Any, agent: int, number: int) -> bool:
    """Returns whether an agent saw a thing at the end of the last step, and is near."""
    return world.sees_thing[agent, number] != 0 and _distance(world, agent, THINGS + number) <= REACH


@compiled
def _grip(world: Any, agent: int, thing: int) -> None:
    """Keeps the pose of a thing relative to an agent that begins to hold it."""
    body = world.body
    x, y = body[thing, X] - body[agent, X], body[thing, Y] - body[agent, Y]
    cos, sin = np.cos(body[agent, TURN]), np.sin(body[agent, TURN])
    world.grip[agent, 0], world.grip[agent, 1] = cos * x + sin * y, cos * y - sin * x
    world.grip[agent, 2] = body[thing, TURN] - body[agent, TURN]
    for axis in range(3):
        world.grip_impulse[agent, axis] = 0.0


@compiled
def _take(world: Any, agent: int, pulls: bool) -> None:
    """Lets an agent hold the nearest visible thing within reach, or nothing."""
    nearest, target = np.inf, -1
    if pulls:
        for number in range(world.num_things):
            if _reaches(world, agent, number):
                distance = _distance(world, agent, THINGS + number)
                if distance < nearest:
                    nearest, target = distance, number
    if target >= 0 and target != world.held[agent]:
        _grip(world, agent, THINGS + target)
    world.held[agent] = target


@compiled
def _choose_locker(world: Any, number: int, actions: np.ndarray, count: int) -> int:
    """Draws one of the `count` agents that want to lock a thing."""
    chosen = below(world.random, count)
    for agent in range(world.num_agents):
        if actions[agent, 4] == 1 and _reaches(world, agent, number):
            if chosen == 0:
                return agent
            chosen -= 1
    return 0


@compiled
def _lock(world: Any, number: int, actions: np.ndarray) -> None:
    """Locks or unlocks one thing."""
    hiders, wanting, vetoed = world.num_hiders, 0, False
    for agent in range(world.num_agents):
        if not _reaches(world, agent, number):
            continue
        if actions[agent, 4] == 1:
            wanting += 1
        elif (agent >= hiders) == (world.locker[number] >= hiders):
            vetoed = True
    thing = world.body[THINGS + number]
    if vetoed and world.locked[number]:
        world.locked[number] = 0
        thing[INV_MASS], thing[INV_INERTIA] = 1.0, inverse_inertia(thing)
    if wanting and not vetoed and not world.locked[number]:
        world.locked[number] = 1
        rest(world, THINGS + number)
        thing[INV_MASS] = thing[INV_INERTIA] = 0.0
        world.locker[number] = _choose_locker(world, number, actions, wanting)


@compiled
def use_hands(world: Any, actions: np.ndarray, locks_ramps: bool) -> None:
    """Updates grips, then locks, by what agents saw at the end of the last step; `actions` is [A, 5]."""
    for agent in range(world.num_agents):
        _take(world, agent, actions[agent, 3] == 1)
    for number in range(world.num_things if locks_ramps else world.num_boxes):
        _lock(world, number, actions)
