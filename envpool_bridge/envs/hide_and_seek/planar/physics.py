"""Physics of one step: substeps of semi-implicit Euler, in which things at rest are skipped."""

from typing import Any

import numpy as np

from envpool_bridge.envs.hide_and_seek.planar import contacts as near
from envpool_bridge.envs.hide_and_seek.planar import faces
from envpool_bridge.envs.hide_and_seek.planar.compiled import compiled
from envpool_bridge.envs.hide_and_seek.planar.solver import (
    GRAVITY,
    Contacts,
    begin_grips,
    solve,
    store_impulses,
)
from envpool_bridge.envs.hide_and_seek.planar.state import (
    COS,
    INV_INERTIA,
    INV_MASS,
    INV_MASS_Z,
    LOAD,
    MIDDLE_X,
    MIDDLE_Y,
    OFFSET,
    SIN,
    SLIDE_X,
    SLIDE_Y,
    SPIN,
    THINGS,
    TURN,
    TWIST,
    VX,
    VY,
    VZ,
    X,
    Y,
    Z,
)

SUBSTEPS, ITERATIONS = 5, 8
SECONDS = 0.075 / SUBSTEPS  # of a substep
FORCE = 100.0  # newtons and newton metres at a control of 1
AGENT_MASS, AGENT_INERTIA, AGENT_DAMPING, AGENT_DAMPING_Z = 1.0, 0.009, 10.0, 1.0
BOX_DAMPING, RAMP_DAMPING = 0.01, 0.1
_REST_SPEED, _REST_SPIN = 1e-3, 2e-3  # m/s, radians/s: below them a thing falls asleep
_MOST_SPEED = 1e3  # m/s: physics has diverged


@compiled
def place_middle(thing: np.ndarray) -> None:
    """Computes the direction of a thing, and the middle of its footprint from that of its mass."""
    thing[COS], thing[SIN] = np.cos(thing[TURN]), np.sin(thing[TURN])
    thing[MIDDLE_X] = thing[X] + thing[SIN] * thing[OFFSET]
    thing[MIDDLE_Y] = thing[Y] - thing[COS] * thing[OFFSET]


@compiled
def set_agent_mass(agent: np.ndarray) -> None:
    """Sets the inverse masses of an agent, with its damping."""
    agent[INV_MASS] = 1.0 / (AGENT_MASS + SECONDS * AGENT_DAMPING)
    agent[INV_MASS_Z] = 1.0 / (AGENT_MASS + SECONDS * AGENT_DAMPING_Z)
    agent[INV_INERTIA] = 1.0 / (AGENT_INERTIA + SECONDS * AGENT_DAMPING)


@compiled
def _accelerate(world: Any, control: np.ndarray) -> None:
    """Applies motors, gravity, damping, and the friction with the floor of the last substep."""
    body = world.body
    for number in range(world.num_agents):
        agent = body[number]
        agent[VX] = agent[INV_MASS] * (AGENT_MASS * agent[VX] + SECONDS * FORCE * control[number, 0])
        agent[VY] = agent[INV_MASS] * (AGENT_MASS * agent[VY] + SECONDS * FORCE * control[number, 1])
        agent[VZ] = agent[INV_MASS_Z] * (AGENT_MASS * agent[VZ] - SECONDS * GRAVITY * AGENT_MASS)
        agent[SPIN] = agent[INV_INERTIA] * (AGENT_INERTIA * agent[SPIN] + SECONDS * FORCE * control[number, 2])
    for number in range(world.num_things):
        if not world.awake[THINGS + number]:
            continue
        thing = body[THINGS + number]
        kept = 1.0 / (1.0 + SECONDS * (BOX_DAMPING if number < world.num_boxes else RAMP_DAMPING))
        thing[VX] = kept * thing[VX] + thing[INV_MASS] * thing[SLIDE_X]
        thing[VY] = kept * thing[VY] + thing[INV_MASS] * thing[SLIDE_Y]
        thing[SPIN] = kept * thing[SPIN] + thing[INV_INERTIA] * thing[TWIST]


@compiled
def _find_contacts(world: Any, contacts: Contacts, wall_friction: float) -> None:
    """Finds all contacts; things that agents or moving things touch wake up."""
    contacts.size[0] = 0
    for thing in range(THINGS, THINGS + world.num_things):
        world.body[thing, LOAD] = 0.0
    for agent in range(world.num_agents):
        near.touch_floor(world, contacts, agent, SECONDS)
        near.touch_walls(world, contacts, agent, wall_friction, SECONDS)
        near.touch_things(world, contacts, agent, SECONDS)
        near.touch_agents(world, contacts, agent, SECONDS)
    for thing in range(THINGS, THINGS + world.num_things):
        faces.touch_each_other(world, contacts, thing, SECONDS)
        if world.awake[thing] and world.body[thing, INV_MASS] > 0.0:
            faces.touch_walls(world, contacts, thing, wall_friction, SECONDS)


@compiled
def _move(world: Any) -> bool:
    """Moves all bodies; returns whether every number is sound."""
    body, sound = world.body, True
    for number in range(world.num_agents):
        agent = body[number]
        agent[X] += SECONDS * agent[VX]
        agent[Y] += SECONDS * agent[VY]
        agent[Z] += SECONDS * agent[VZ]
        agent[TURN] += SECONDS * agent[SPIN]
        sound = sound and abs(agent[VX]) + abs(agent[VY]) + abs(agent[VZ]) < _MOST_SPEED
    for number in range(THINGS, THINGS + world.num_things):
        thing = body[number]
        if not world.awake[number] or thing[INV_MASS] == 0.0:
            continue
        thing[X] += SECONDS * thing[VX]
        thing[Y] += SECONDS * thing[VY]
        thing[TURN] += SECONDS * thing[SPIN]
        sound = sound and abs(thing[VX]) + abs(thing[VY]) + abs(thing[SPIN]) < _MOST_SPEED
        place_middle(thing)
        if thing[VX] ** 2 + thing[VY] ** 2 < _REST_SPEED**2 and abs(thing[SPIN]) < _REST_SPIN:
            rest(world, number)
    return sound


@compiled
def rest(world: Any, number: int) -> None:
    """Stops a thing until something touches it."""
    thing = world.body[number]
    world.awake[number] = 0
    thing[VX] = thing[VY] = thing[SPIN] = thing[SLIDE_X] = thing[SLIDE_Y] = thing[TWIST] = 0.0


@compiled
def advance(world: Any, control: np.ndarray, contacts: Contacts, arms: np.ndarray, wall_friction: float) -> bool:
    """Runs the physics of one step; returns False if it diverged.

    Args:
        world: Record of a world.
        control: [A, 3] forces along x and y and torques, in [-0.9, 0.9], of `FORCE`.
        contacts: Scratch for contacts.
        arms: [A, 5] scratch for grips.
        wall_friction: Coefficient of friction of agents and ramps with walls.
    """
    for _ in range(SUBSTEPS):
        world.time += 1
        for agent in range(world.num_agents):
            if world.held[agent] >= 0:
                world.awake[THINGS + world.held[agent]] = 1
        _accelerate(world, control)
        _find_contacts(world, contacts, wall_friction)
        begin_grips(world, arms, SECONDS)
        solve(world, contacts, arms, ITERATIONS, SECONDS)
        store_impulses(world, contacts)
        if not _move(world):
            return False
    return True
