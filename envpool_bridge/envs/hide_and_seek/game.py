"""Rules of the game that a configuration may change: `Base`, the quadrant game, and `RandomWalls`, the published one."""

import dataclasses
import math
from typing import Literal

from envpool_bridge.errors import UserError

CELL = 0.2  # metres: a side of a cell of the grid on which walls and things are placed
STEP_SECONDS = 0.075  # length of an env step
REACH = 0.25  # metres from an agent's center to the surface of a thing that it can hold or lock
HALF_CONE = 3 / 8 * math.pi  # radians to either side of the heading that an agent sees
LIDAR_MISS = 6.0  # metres reported for a ray without a hit; more distant hits are not clipped
TEAM_LIMIT = 3  # agents in a team
SIGNAL_NAMES = ("chase_fraction", "ramp_use", "surf_distance", "door_closing", "sheltered_prep", "ramp_defence")
"""Infos of an episode that `phases` computes; docs/environments/hide_and_seek.md defines them."""
Reward = Literal["joint_zero_sum", "joint_mean", "selfish"]


@dataclasses.dataclass(frozen=True)
class Game:
    """Options of both variants; lengths in metres, times in env steps of 0.075 s.

    Attributes:
        hiders: Agents of the hiding team, 1 to 3.
        seekers: Agents of the seeking team, 1 to 3.
        random_team_sizes: Whether each team's size is drawn for each episode, from 1 to its number above.
        max_agents: Number of agents that observations have room for, including the observer; 0 for hiders + seekers.
        horizon: Number of steps after which an episode is truncated; it has no other end.
        prep_fraction: Fraction of the horizon in which seekers stand still and rewards are 0.
        map_scale: Scale of the floor (6 m), of the area agents must not leave, and of the largest distance within a
            team at the start.
        boxes: Fewest and most boxes of an episode.
        elongated_boxes: Fewest and most of them that are long (1.65 x 0.15) instead of square (0.5 x 0.5).
        ramps: Number of ramps.
        locks_ramps: Whether ramps can be locked, and their locks are observed.
        observes_sizes: Whether the sizes of boxes are observed.
        teams_together: Whether a team starts within 0.5 m of its first member.
        door_size: Number of cells of a door, minus one: openings are (door_size + 1) * 0.2 + 0.1 m wide.
        reward: "joint_zero_sum": -1 for all hiders if any is seen, else 1, and the opposite for seekers. "joint_mean":
            a team's mean of its agents' own rewards. "selfish": each agent's own.
        bounds: Coordinates x and y of two corners; an agent outside gets -10 instead.
        penalizes_things: Whether all agents get -10 while a box or a ramp is outside.
        lidar_rays: Number of rays of each agent, evenly around it.
    """

    hiders: int = 2
    seekers: int = 2
    random_team_sizes: bool = False
    max_agents: int = 0
    horizon: int = 240
    prep_fraction: float = 0.4
    map_scale: float = 1.0
    boxes: tuple[int, int] = (3, 9)
    elongated_boxes: tuple[int, int] = (3, 9)
    ramps: int = 2
    locks_ramps: bool = True
    observes_sizes: bool = True
    teams_together: bool = True
    door_size: int = 2
    reward: Reward = "joint_zero_sum"
    bounds: tuple[float, float, float, float] = (-6.0, -6.0, 12.0, 12.0)
    penalizes_things: bool = False
    lidar_rays: int = 30

    def __post_init__(self) -> None:
        for name in ("boxes", "elongated_boxes", "bounds"):  # JSON gives lists
            object.__setattr__(self, name, tuple(getattr(self, name)))
        self._require("hiders and seekers", f"1 to {TEAM_LIMIT} each", self._teams_fit(), (self.hiders, self.seekers))
        num_agents = self.hiders + self.seekers
        self._require("max_agents", f"0 or at least {num_agents}", self.max_agents == 0 or self.seats >= num_agents)
        self._require("horizon", "at least 1", self.horizon >= 1)
        self._require("prep_fraction", "in [0, 1]", 0.0 <= self.prep_fraction <= 1.0)
        self._require("map_scale", "in [1, 4]", 1.0 <= self.map_scale <= 4.0)
        self._require("boxes", "[fewest, most], both at least 0", 0 <= self.boxes[0] <= self.boxes[1])
        fewest, most = self.elongated_boxes
        ordered = 0 <= fewest <= min(most, self.boxes[0])
        self._require("elongated_boxes", "[fewest, most], fewest at most the fewest boxes", ordered)
        self._require("ramps", "at least 0", self.ramps >= 0)
        self._require("door_size", "at least 1", self.door_size >= 1)
        self._require("lidar_rays", "at least 1", self.lidar_rays >= 1)

    @property
    def seats(self) -> int:
        """Number of agents that observations have room for, including the observer."""
        return self.max_agents or self.hiders + self.seekers

    @property
    def cells(self) -> int:
        """Number of cells along a side of the floor: 30 at scale 1."""
        return round(30 * self.map_scale)

    @property
    def floor_size(self) -> float:
        """Metres along a side of the floor: 6 at scale 1."""
        return self.cells * CELL

    @property
    def prep_steps(self) -> float:
        """Length of the preparation phase in steps; it includes every step that starts before its end."""
        return self.prep_fraction * self.horizon

    def _teams_fit(self) -> bool:
        return 1 <= self.hiders <= TEAM_LIMIT and 1 <= self.seekers <= TEAM_LIMIT

    def _require(self, name: str, expected: str, good: bool, got: object = None) -> None:
        if not good:
            raise UserError(f"hide-and-seek: {name} must be {expected}, got {getattr(self, name, got)}")


@dataclasses.dataclass(frozen=True)
class RandomWalls(Game):
    """The published game: 1 to 4 rooms of random walls, each inner wall with a door, with or without outer walls.

    Attributes:
        rooms: Largest number of rooms of an episode.
        random_rooms: Whether the number of rooms is drawn from 1 to `rooms`; otherwise it is `rooms`.
        min_room_size: Number of cells; a new wall is farther away than them from others that leave the same side of a wall.
        outside_walls: Probability of outer walls, 4 m high.
    """

    rooms: int = 4
    random_rooms: bool = True
    min_room_size: int = 6
    outside_walls: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("rooms", "1 to 8", 1 <= self.rooms <= 8)
        self._require("min_room_size", "at least 1", self.min_room_size >= 1)
        self._require("outside_walls", "in [0, 1]", 0.0 <= self.outside_walls <= 1.0)


@dataclasses.dataclass(frozen=True)
class Base(Game):
    """The quadrant game: a room in one corner with one door or two, the boxes in it, seekers outside.

    Attributes:
        one_door: Probability that only one of the room's two walls has a door.
    """

    horizon: int = 80
    boxes: tuple[int, int] = (2, 2)
    elongated_boxes: tuple[int, int] = (0, 0)
    ramps: int = 1
    locks_ramps: bool = False
    observes_sizes: bool = False
    teams_together: bool = False
    bounds: tuple[float, float, float, float] = (0.1, 0.1, 5.9, 5.9)
    penalizes_things: bool = True
    one_door: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("one_door", "in [0, 1]", 0.0 <= self.one_door <= 1.0)
