"""Sequential impulses with warm start: contacts with friction, friction of things with the floor, and grips.

Source: Catto 2005, "Iterative dynamics with temporal coherence" (GDC), and Catto 2011, "Soft constraints". A contact has a
normal in three dimensions; only agents move along z. Damping is implicit: the inverse masses of agents contain it.
"""

from typing import Any, NamedTuple

import numpy as np

from envpool_bridge.envs.hide_and_seek.planar.compiled import compiled
from envpool_bridge.envs.hide_and_seek.planar.state import (
    ARM,
    FACE_WALLS,
    INV_INERTIA,
    INV_MASS,
    INV_MASS_Z,
    LOAD,
    MAX_AGENTS,
    MAX_THINGS,
    NEAR,
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
)

# Columns of a contact between bodies a and b, whose normal points from b to a. LEVER_* are the cross products of the arm of
# the contact point with the normal (N) and two tangents (S, T), of which S is horizontal.
NX, NY, NZ, LEVER_NA, LEVER_NB, SX, SY, LEVER_SA, LEVER_SB, TX, TY, TZ, LEVER_TA, LEVER_TB = range(14)
MASS_N, MASS_S, MASS_T, BIAS, FRICTION, PUSH, RUB_S, RUB_T = range(14, 22)
_COLUMNS = 22
BODY_A, BODY_B, SLOT, POINT = range(4)  # POINT -1: slot of `near_impulse`; 0, 1: point of `face_impulse`
_MAX_CONTACTS = MAX_AGENTS * NEAR + 2 * MAX_THINGS * (FACE_WALLS + MAX_AGENTS)

FLOOR_FRICTION, GRAVITY = 0.2, 50.0
_GRIP_RATE, _GRIP_SPEED = 0.3, 4.0  # fraction of an error corrected in a substep; largest speed of it, m/s


class Contacts(NamedTuple):
    """Contacts of one world in one substep.

    Attributes:
        value: [N, 22] numbers by column.
        ids: [N, 4] integers by column.
        size: [1] number of contacts.
    """

    value: np.ndarray
    ids: np.ndarray
    size: np.ndarray


def make_contacts() -> Contacts:
    """Returns room for the contacts of any world."""
    return Contacts(np.zeros((_MAX_CONTACTS, _COLUMNS)), np.zeros((_MAX_CONTACTS, 4), np.int64), np.zeros(1, np.int64))


@compiled
def add_contact(body: np.ndarray, contacts: Contacts, pair: Any, normal: Any, arms: Any, rest: Any) -> None:
    """Adds a contact, and applies the impulses that it starts with.

    Args:
        body: Bodies of a world.
        contacts: Contacts of the world.
        pair: Bodies a and b, slot of the impulses, and point.
        normal: Normal (x, y, z) from b to a.
        arms: Arms (x, y) from the masses of a and b to the point: four numbers.
        rest: Bias, coefficient of friction, and the three impulses of the last substep.
    """
    number = contacts.size[0]
    contacts.size[0] = number + 1
    row, index = contacts.value[number], contacts.ids[number]
    a, b = pair[0], pair[1]
    index[BODY_A], index[BODY_B], index[SLOT], index[POINT] = a, b, pair[2], pair[3]
    x, y, z = normal
    flat = np.sqrt(x * x + y * y)
    sx, sy = (1.0, 0.0) if flat < 1e-9 else (-y / flat, x / flat)
    tx, ty, tz = -z * sy, z * sx, x * sy - y * sx
    row[NX], row[NY], row[NZ], row[SX], row[SY], row[TX], row[TY], row[TZ] = x, y, z, sx, sy, tx, ty, tz
    at_x, at_y, of_x, of_y = arms
    row[LEVER_NA], row[LEVER_NB] = at_x * y - at_y * x, of_x * y - of_y * x
    row[LEVER_SA], row[LEVER_SB] = at_x * sy - at_y * sx, of_x * sy - of_y * sx
    row[LEVER_TA], row[LEVER_TB] = at_x * ty - at_y * tx, of_x * ty - of_y * tx
    row[BIAS], row[FRICTION], row[PUSH], row[RUB_S], row[RUB_T] = rest
    mass, mass_z = body[a, INV_MASS] + body[b, INV_MASS], body[a, INV_MASS_Z] + body[b, INV_MASS_Z]
    ia, ib = body[a, INV_INERTIA], body[b, INV_INERTIA]
    flat = row[NX] * row[NX] + row[NY] * row[NY]
    normal = mass * flat + mass_z * row[NZ] * row[NZ] + ia * row[LEVER_NA] ** 2 + ib * row[LEVER_NB] ** 2
    side = mass * (row[SX] * row[SX] + row[SY] * row[SY]) + ia * row[LEVER_SA] ** 2 + ib * row[LEVER_SB] ** 2
    flat = row[TX] * row[TX] + row[TY] * row[TY]
    tilted = mass * flat + mass_z * row[TZ] * row[TZ] + ia * row[LEVER_TA] ** 2 + ib * row[LEVER_TB] ** 2
    row[MASS_N] = 1.0 / normal if normal > 0.0 else 0.0
    row[MASS_S] = 1.0 / side if side > 0.0 else 0.0
    row[MASS_T] = 1.0 / tilted if tilted > 0.0 else 0.0
    if row[PUSH] != 0.0:
        body[b, LOAD] += row[PUSH] * row[NZ]
        _push(body, row, a, b, row[PUSH])
        _rub(body, row, a, b, row[RUB_S], row[RUB_T])


@compiled
def _push(body: np.ndarray, row: np.ndarray, a: int, b: int, impulse: float) -> None:
    """Applies an impulse along the normal."""
    x, y, z = row[NX] * impulse, row[NY] * impulse, row[NZ] * impulse
    body[a, VX] += body[a, INV_MASS] * x
    body[a, VY] += body[a, INV_MASS] * y
    body[a, VZ] += body[a, INV_MASS_Z] * z
    body[a, SPIN] += body[a, INV_INERTIA] * row[LEVER_NA] * impulse
    body[b, VX] -= body[b, INV_MASS] * x
    body[b, VY] -= body[b, INV_MASS] * y
    body[b, VZ] -= body[b, INV_MASS_Z] * z
    body[b, SPIN] -= body[b, INV_INERTIA] * row[LEVER_NB] * impulse


@compiled
def _rub(body: np.ndarray, row: np.ndarray, a: int, b: int, s: float, t: float) -> None:
    """Applies impulses along the tangents."""
    x, y, z = row[SX] * s + row[TX] * t, row[SY] * s + row[TY] * t, row[TZ] * t
    body[a, VX] += body[a, INV_MASS] * x
    body[a, VY] += body[a, INV_MASS] * y
    body[a, VZ] += body[a, INV_MASS_Z] * z
    body[a, SPIN] += body[a, INV_INERTIA] * (row[LEVER_SA] * s + row[LEVER_TA] * t)
    body[b, VX] -= body[b, INV_MASS] * x
    body[b, VY] -= body[b, INV_MASS] * y
    body[b, VZ] -= body[b, INV_MASS_Z] * z
    body[b, SPIN] -= body[b, INV_INERTIA] * (row[LEVER_SB] * s + row[LEVER_TB] * t)


@compiled
def _solve_contact(body: np.ndarray, row: np.ndarray, a: int, b: int) -> None:
    """Applies friction within the cone of the present normal impulse, then the normal impulse."""
    vx, vy, vz = body[a, VX] - body[b, VX], body[a, VY] - body[b, VY], body[a, VZ] - body[b, VZ]
    limit = row[FRICTION] * row[PUSH]
    if limit > 0.0:
        s = row[SX] * vx + row[SY] * vy + row[LEVER_SA] * body[a, SPIN] - row[LEVER_SB] * body[b, SPIN]
        t = row[TX] * vx + row[TY] * vy + row[TZ] * vz + row[LEVER_TA] * body[a, SPIN] - row[LEVER_TB] * body[b, SPIN]
        rub_s, rub_t = row[RUB_S] - s * row[MASS_S], row[RUB_T] - t * row[MASS_T]
        size = np.sqrt(rub_s * rub_s + rub_t * rub_t)
        if size > limit:
            rub_s, rub_t = rub_s * limit / size, rub_t * limit / size
        _rub(body, row, a, b, rub_s - row[RUB_S], rub_t - row[RUB_T])
        row[RUB_S], row[RUB_T] = rub_s, rub_t
        vx, vy, vz = body[a, VX] - body[b, VX], body[a, VY] - body[b, VY], body[a, VZ] - body[b, VZ]
    speed = row[NX] * vx + row[NY] * vy + row[NZ] * vz
    speed += row[LEVER_NA] * body[a, SPIN] - row[LEVER_NB] * body[b, SPIN]
    push = max(row[PUSH] - (speed + row[BIAS]) * row[MASS_N], 0.0)
    change = push - row[PUSH]
    if change != 0.0:
        row[PUSH] = push
        body[b, LOAD] += change * row[NZ]
        _push(body, row, a, b, change)


@compiled
def _rub_floor(thing: np.ndarray, seconds: float) -> None:
    """Applies the friction of a thing with the floor, which grows with the weight on it."""
    limit = FLOOR_FRICTION * (GRAVITY * seconds + max(thing[LOAD], 0.0))
    most = limit * thing[ARM]
    twist = min(max(thing[TWIST] - thing[SPIN] / thing[INV_INERTIA], -most), most)
    thing[SPIN] += thing[INV_INERTIA] * (twist - thing[TWIST])
    thing[TWIST] = twist
    x, y = thing[SLIDE_X] - thing[VX] / thing[INV_MASS], thing[SLIDE_Y] - thing[VY] / thing[INV_MASS]
    size = np.sqrt(x * x + y * y)
    if size > limit:
        x, y = x * limit / size, y * limit / size
    thing[VX] += thing[INV_MASS] * (x - thing[SLIDE_X])
    thing[VY] += thing[INV_MASS] * (y - thing[SLIDE_Y])
    thing[SLIDE_X], thing[SLIDE_Y] = x, y


@compiled
def _apply_grip(body: np.ndarray, agent: int, thing: int, arm: Any, impulse: Any) -> None:
    """Applies an impulse (x, y, turn) on the thing, and its reverse on the agent at the end of the arm (x, y)."""
    body[thing, VX] += body[thing, INV_MASS] * impulse[0]
    body[thing, VY] += body[thing, INV_MASS] * impulse[1]
    body[thing, SPIN] += body[thing, INV_INERTIA] * impulse[2]
    body[agent, VX] -= body[agent, INV_MASS] * impulse[0]
    body[agent, VY] -= body[agent, INV_MASS] * impulse[1]
    turn = arm[0] * impulse[1] - arm[1] * impulse[0] + impulse[2]
    body[agent, SPIN] -= body[agent, INV_INERTIA] * turn


@compiled
def _arm(world: Any, agent: int) -> tuple[float, float]:
    """Returns the arm from an agent to the middle of the thing's mass in the gripped pose."""
    turn, grip = world.body[agent, TURN], world.grip[agent]
    cos, sin = np.cos(turn), np.sin(turn)
    return cos * grip[0] - sin * grip[1], sin * grip[0] + cos * grip[1]


@compiled
def begin_grips(world: Any, arms: np.ndarray, seconds: float) -> None:
    """Computes arms and speeds of correction, [A, 5], and applies the impulses of the last substep."""
    body = world.body
    for agent in range(world.num_agents):
        if world.held[agent] < 0:
            continue
        thing = THINGS + world.held[agent]
        x, y = _arm(world, agent)
        arms[agent, 0], arms[agent, 1] = x, y
        errors = (
            body[thing, X] - body[agent, X] - x,
            body[thing, Y] - body[agent, Y] - y,
            body[thing, TURN] - body[agent, TURN] - world.grip[agent, 2],
        )
        for axis in range(3):
            speed = _GRIP_RATE / seconds * errors[axis]
            arms[agent, 2 + axis] = min(max(speed, -_GRIP_SPEED), _GRIP_SPEED)
        impulse = (world.grip_impulse[agent, 0], world.grip_impulse[agent, 1], world.grip_impulse[agent, 2])
        _apply_grip(body, agent, thing, (x, y), impulse)


@compiled
def _solve_grip(world: Any, agent: int, arms: np.ndarray) -> None:
    """Solves the three equations of a grip exactly."""
    body, thing = world.body, THINGS + world.held[agent]
    x, y = arms[agent, 0], arms[agent, 1]
    vx = body[thing, VX] - body[agent, VX] + body[agent, SPIN] * y + arms[agent, 2]
    vy = body[thing, VY] - body[agent, VY] - body[agent, SPIN] * x + arms[agent, 3]
    spin = body[thing, SPIN] - body[agent, SPIN] + arms[agent, 4]
    mass, inertia = body[thing, INV_MASS] + body[agent, INV_MASS], body[agent, INV_INERTIA]
    k11, k12, k13 = mass + inertia * y * y, -inertia * x * y, -inertia * y
    k22, k23, k33 = mass + inertia * x * x, inertia * x, inertia + body[thing, INV_INERTIA]
    c11, c12, c13 = k22 * k33 - k23 * k23, k13 * k23 - k12 * k33, k12 * k23 - k13 * k22
    c22, c23, c33 = k11 * k33 - k13 * k13, k12 * k13 - k11 * k23, k11 * k22 - k12 * k12
    scale = -1.0 / (k11 * c11 + k12 * c12 + k13 * c13)
    impulse = (
        scale * (c11 * vx + c12 * vy + c13 * spin),
        scale * (c12 * vx + c22 * vy + c23 * spin),
        scale * (c13 * vx + c23 * vy + c33 * spin),
    )
    for axis in range(3):
        world.grip_impulse[agent, axis] += impulse[axis]
    _apply_grip(body, agent, thing, (x, y), impulse)


@compiled
def solve(world: Any, contacts: Contacts, arms: np.ndarray, iterations: int, seconds: float) -> None:
    """Iterates over grips, friction with the floor and contacts."""
    body = world.body
    for _ in range(iterations):
        for agent in range(world.num_agents):
            if world.held[agent] >= 0:
                _solve_grip(world, agent, arms)
        for thing in range(THINGS, THINGS + world.num_things):
            if world.awake[thing] and body[thing, INV_MASS] > 0.0:
                _rub_floor(body[thing], seconds)
        for number in range(contacts.size[0]):
            index = contacts.ids[number]
            _solve_contact(body, contacts.value[number], index[BODY_A], index[BODY_B])


@compiled
def store_impulses(world: Any, contacts: Contacts) -> None:
    """Keeps the impulses, with which the same contacts start in the next substep."""
    for number in range(contacts.size[0]):
        row, index = contacts.value[number], contacts.ids[number]
        if index[POINT] < 0:
            kept = world.near_impulse[index[BODY_A], index[SLOT]]
            kept[0], kept[1], kept[2] = row[PUSH], row[RUB_S], row[RUB_T]
        else:
            kept = world.face_impulse[index[BODY_A] - THINGS, index[SLOT], index[POINT]]
            kept[0], kept[1] = row[PUSH], row[RUB_S]
