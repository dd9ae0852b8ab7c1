"""The state of worlds as one array of records, of which an environment is one element.

Bodies are agents, from 0, then things (boxes before ramps), from `THINGS`. The last body stands for the floor and the walls.
Sizes are upper limits, so that one compiled program serves every game.
"""

from typing import NamedTuple

import numpy as np

from envpool_bridge.envs.hide_and_seek.game import SIGNAL_NAMES, TEAM_LIMIT, Base, Game, RandomWalls
from envpool_bridge.envs.hide_and_seek.phases import POSE_COLUMNS
from envpool_bridge.errors import UserError

MAX_AGENTS, MAX_THINGS, MAX_WALLS, MAX_DOORS, MAX_RAYS = 2 * TEAM_LIMIT, 24, 18, 7, 64
THINGS = MAX_AGENTS
FIXED = THINGS + MAX_THINGS
BODIES = FIXED + 1

# Columns of a body. Position and velocity are those of the center of mass; MIDDLE is the middle of the footprint.
X, Y, Z, TURN, VX, VY, VZ, SPIN = range(8)
HALF_X, HALF_Y, TOP, RADIUS = range(8, 12)  # TOP is a thing's height, RADIUS that of the circle around it
INV_MASS, INV_MASS_Z, INV_INERTIA, OFFSET = range(12, 16)  # OFFSET of the mass along the own y axis
COS, SIN, MIDDLE_X, MIDDLE_Y = range(16, 20)
START_X, START_Y, ARM = range(20, 23)  # ARM is the mean distance of the friction with the floor
SLIDE_X, SLIDE_Y, TWIST, LOAD = range(
    23, 27
)  # impulses of the friction with the floor; weight on the thing, as an impulse
BODY_COLUMNS = 27

# Columns of a wall.
WALL_X, WALL_Y, WALL_HALF_X, WALL_HALF_Y, WALL_TOP = range(5)

# Partners of an agent in `near_impulse`: floor, walls, things, agents. Of a thing in `face_impulse`: things, walls.
NEAR_WALLS, NEAR_THINGS = 1, 1 + MAX_WALLS
NEAR_AGENTS = NEAR_THINGS + MAX_THINGS
NEAR = NEAR_AGENTS + MAX_AGENTS
FACE_WALLS = MAX_THINGS

PLAYING, OVER, PLACED, MOVED = range(4)
"""Values of `over`: what the next step does. A placed world starts with its walls and its poses in `now`; a moved one is shown."""

STATS = 12 + len(SIGNAL_NAMES)
WORLD = np.dtype(
    [
        ("body", np.float64, (BODIES, BODY_COLUMNS)),
        ("wall", np.float64, (MAX_WALLS, 5)),
        ("door", np.float64, (MAX_DOORS, 4)),
        ("before", np.float64, (MAX_AGENTS + MAX_THINGS, POSE_COLUMNS)),  # poses of the last step, and the present ones
        ("now", np.float64, (MAX_AGENTS + MAX_THINGS, POSE_COLUMNS)),
        ("near_impulse", np.float64, (MAX_AGENTS, NEAR, 3)),
        ("near_time", np.int64, (MAX_AGENTS, NEAR)),
        ("face_impulse", np.float64, (MAX_THINGS, MAX_THINGS + MAX_WALLS, 2, 2)),
        ("face_time", np.int64, (MAX_THINGS, MAX_THINGS + MAX_WALLS, 2)),
        ("face_feature", np.int64, (MAX_THINGS, MAX_THINGS + MAX_WALLS, 2)),
        ("grip", np.float64, (MAX_AGENTS, 3)),
        ("grip_impulse", np.float64, (MAX_AGENTS, 3)),
        ("held", np.int64, (MAX_AGENTS,)),
        ("locked", np.int64, (MAX_THINGS,)),
        ("locker", np.int64, (MAX_THINGS,)),
        ("awake", np.int64, (BODIES,)),
        ("sees_agent", np.int64, (MAX_AGENTS, MAX_AGENTS)),
        ("sees_thing", np.int64, (MAX_AGENTS, MAX_THINGS)),
        ("lidar", np.float64, (MAX_AGENTS, MAX_RAYS)),
        ("reward", np.float64, (MAX_AGENTS,)),
        ("team_return", np.float64, (2,)),
        ("stats", np.float64, (STATS,)),
        ("signals", np.float64, (len(SIGNAL_NAMES),)),
        ("num_hiders", np.int64),
        ("num_agents", np.int64),
        ("num_boxes", np.int64),
        ("num_things", np.int64),
        ("num_walls", np.int64),
        ("num_doors", np.int64),
        ("num_steps", np.int64),
        ("time", np.int64),  # substeps
        ("prep_ended", np.int64),
        ("rewarded_steps", np.int64),
        ("seen_steps", np.int64),
        ("over", np.int64),
        ("discarded", np.int64),
        ("random", np.uint64, (1,)),
    ],
    align=True,
)
"""One environment."""


class Rules(NamedTuple):
    """The numbers of a `Game` that the kernel reads; counts are int, lengths in metres."""

    base: bool
    hiders: int
    seekers: int
    random_team_sizes: bool
    seats: int
    horizon: int
    prep_steps: float
    cells: int
    fewest_boxes: int
    most_boxes: int
    fewest_elongated: int
    most_elongated: int
    ramps: int
    locks_ramps: bool
    observes_sizes: bool
    together: bool
    together_cells: int
    door_size: int
    reward: int
    low_x: float
    low_y: float
    high_x: float
    high_y: float
    penalizes_things: bool
    lidar_rays: int
    wall_friction: float
    rooms: int
    random_rooms: bool
    min_room_size: int
    outside_walls: float
    one_door: float


REWARDS = ("joint_zero_sum", "joint_mean", "selfish")


def rules_of(game: Game) -> Rules:
    """Returns the rules of a game.

    Raises:
        UserError: the game is larger than the kernel's arrays.
    """
    things = game.boxes[1] + game.ramps
    if things > MAX_THINGS or game.lidar_rays > MAX_RAYS or game.seats > MAX_AGENTS:
        raise UserError(
            f"hide-and-seek: the planar engine has room for {MAX_THINGS} boxes and ramps, {MAX_RAYS} lidar rays and "
            f"{MAX_AGENTS} agents, got {things}, {game.lidar_rays} and {game.seats}: use fewer, or engine 'mujoco'"
        )
    walls = game if isinstance(game, RandomWalls) else RandomWalls()
    bounds = [float(bound * game.map_scale) for bound in game.bounds]
    return Rules(
        base=isinstance(game, Base),
        hiders=game.hiders,
        seekers=game.seekers,
        random_team_sizes=game.random_team_sizes,
        seats=game.seats,
        horizon=game.horizon,
        prep_steps=float(game.prep_steps),
        cells=game.cells,
        fewest_boxes=game.boxes[0],
        most_boxes=game.boxes[1],
        fewest_elongated=game.elongated_boxes[0],
        most_elongated=game.elongated_boxes[1],
        ramps=game.ramps,
        locks_ramps=game.locks_ramps,
        observes_sizes=game.observes_sizes,
        together=game.teams_together,
        together_cells=int(np.ceil(0.5 * game.map_scale / 0.2)),
        door_size=game.door_size,
        reward=REWARDS.index(game.reward),
        low_x=bounds[0],
        low_y=bounds[1],
        high_x=bounds[2],
        high_y=bounds[3],
        penalizes_things=game.penalizes_things,
        lidar_rays=game.lidar_rays,
        wall_friction=0.01 if isinstance(game, Base) else 1.0,
        rooms=walls.rooms,
        random_rooms=walls.random_rooms,
        min_room_size=walls.min_room_size,
        outside_walls=float(walls.outside_walls),
        one_door=float(game.one_door) if isinstance(game, Base) else 0.0,
    )
