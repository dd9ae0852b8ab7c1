"""Layout at the start of an episode: walls, agents, boxes and ramps."""

import dataclasses

import numpy as np

from envpool_bridge.envs.hide_and_seek.game import CELL, Base, Game, RandomWalls
from envpool_bridge.envs.hide_and_seek.placement import DrawCell, Grid, Place
from envpool_bridge.envs.hide_and_seek.walls import Wall, quadrant_walls, random_walls
from envpool_bridge.errors import UserError

AGENT_SIZE = 0.3  # metres along x and y
RAMP_SIZE = 0.5
BOX_SIZE = (0.5, 0.5, 0.5)
LONG_BOX_SIZES = ((1.65, 0.15, 0.5), (0.15, 1.65, 0.5))  # along x, along y
_TOGETHER = 0.5  # metres from the first of a team, on either axis
_ATTEMPTS = 2000


@dataclasses.dataclass(frozen=True)
class Layout:
    """Positions before the first step; nothing is rotated and everything stands on the floor.

    Attributes:
        walls: Pieces of walls next to their doors.
        num_hiders: Number of hiders, the first agents.
        agents: [A, 2] lower left corners, metres.
        boxes: [N, 2] lower left corners.
        box_sizes: [N, 3] metres along x, y and z.
        ramps: [R, 2] lower left corners.
        doors: Missing pieces of walls; see `Walls`.
    """

    walls: tuple[Wall, ...]
    num_hiders: int
    agents: np.ndarray
    boxes: np.ndarray
    box_sizes: np.ndarray
    ramps: np.ndarray
    doors: tuple[Wall, ...] = ()

    @property
    def num_agents(self) -> int:
        """Number of agents of both teams."""
        return len(self.agents)


def draw_layout(game: Game, rng: np.random.Generator) -> Layout:
    """Draws a layout; starts again if a thing does not fit.

    Raises:
        UserError: the game has more things than fit on the floor.
    """
    for _ in range(_ATTEMPTS):
        layout = _attempt(game, rng)
        if layout is not None:
            return layout
    raise UserError(
        f"hide-and-seek: {_ATTEMPTS} attempts found no layout for {game.boxes} boxes and {game.ramps} ramps on a floor of "
        f"{game.floor_size:.1f} m: use fewer, or a larger map_scale"
    )


def _attempt(game: Game, rng: np.random.Generator) -> Layout | None:
    walls = random_walls(game, rng) if isinstance(game, RandomWalls) else quadrant_walls(_base(game), rng)
    if walls is None:
        return None
    grid = Grid(game.cells, walls.pieces, rng)
    hiders, seekers = _team_sizes(game, rng)
    agents = _place_agents(game, grid, hiders, seekers)
    sizes = _box_sizes(game, rng)
    in_quadrant = isinstance(game, Base)
    boxes = _place_all(grid, [(x, y) for x, y, _ in sizes], grid.in_quadrant if in_quadrant else grid.anywhere)
    ramps = _place_all(grid, [(RAMP_SIZE, RAMP_SIZE)] * game.ramps, grid.anywhere)
    if agents is None or boxes is None or ramps is None:
        return None
    corners = [np.array([place.corner for place in places]).reshape(-1, 2) for places in (agents, boxes, ramps)]
    sizes = np.array(sizes).reshape(-1, 3)
    return Layout(tuple(walls.pieces), hiders, corners[0], corners[1], sizes, corners[2], tuple(walls.doors))


def _base(game: Game) -> Base:
    if isinstance(game, Base):
        return game
    raise UserError(f"hide-and-seek: expected a game of class Base or RandomWalls, got {type(game).__name__}")


def _team_sizes(game: Game, rng: np.random.Generator) -> tuple[int, int]:
    if not game.random_team_sizes:
        return game.hiders, game.seekers
    return int(rng.integers(1, game.hiders + 1)), int(rng.integers(1, game.seekers + 1))


def _place_agents(game: Game, grid: Grid, hiders: int, seekers: int) -> list[Place] | None:
    placed: list[Place] = []
    for size, is_hiders in ((hiders, True), (seekers, False)):
        first = grid.anywhere if is_hiders or isinstance(game, RandomWalls) else grid.outside_quadrant
        team: list[Place] = []
        for _ in range(size):
            draw_cell: DrawCell = first
            if team and game.teams_together:
                draw_cell = grid.near(team[0].cell, int(np.ceil(_TOGETHER * game.map_scale / CELL)))
            place = grid.place((AGENT_SIZE, AGENT_SIZE), draw_cell)
            if place is None:
                return None
            team.append(place)
        placed += team
    return placed


def _place_all(grid: Grid, footprints: list[tuple[float, float]], draw_cell: DrawCell) -> list[Place] | None:
    placed = []
    for footprint in footprints:
        place = grid.place(footprint, draw_cell)
        if place is None:
            return None
        placed.append(place)
    return placed


def _box_sizes(game: Game, rng: np.random.Generator) -> list[tuple[float, float, float]]:
    """Returns boxes long in x first, then those long in y, then the others."""
    count = int(rng.integers(game.boxes[0], game.boxes[1] + 1))
    fewest, most = game.elongated_boxes
    elongated = int(rng.integers(fewest, min(most, count) + 1))
    along_x = int(rng.integers(0, elongated + 1))
    along_y = elongated - along_x
    return [LONG_BOX_SIZES[0]] * along_x + [LONG_BOX_SIZES[1]] * along_y + [BOX_SIZE] * (count - elongated)
