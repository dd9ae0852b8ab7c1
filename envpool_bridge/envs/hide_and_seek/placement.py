"""Free places on a grid of cells."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from envpool_bridge.envs.hide_and_seek.game import CELL
from envpool_bridge.envs.hide_and_seek.walls import Cell, Wall

_TRIES = 10
DrawCell = Callable[[Cell], Cell]
"""Draws the lower left cell for a thing of [x, y] cells."""


class Place(NamedTuple):
    """Position of a thing: its lower left cell, and its lower left corner in metres."""

    cell: Cell
    corner: tuple[float, float]


class Grid:
    """Cells of the floor, each free or occupied.

    Args:
        cells: Number of cells along a side of the floor.
        walls: Walls, whose cells are occupied.
        rng: Generator of places.
    """

    def __init__(self, cells: int, walls: list[Wall], rng: np.random.Generator) -> None:
        self.cells = cells
        self.occupied = np.zeros((cells, cells), bool)
        self.rng = rng
        for wall in walls:
            (x, y), (to_x, to_y) = wall.start, wall.end
            self.occupied[x : to_x + 1, y : to_y + 1] = True

    def place(self, footprint: tuple[float, float], draw_cell: DrawCell) -> Place | None:
        """Occupies free cells for a thing, placed at random within them; returns None after ten failed tries.

        Args:
            footprint: Sizes along x and y, metres.
            draw_cell: Function that proposes a cell.
        """
        size = cells_of(footprint)
        for _ in range(_TRIES):
            x, y = draw_cell(size)
            if self.occupied[x : x + size[0], y : y + size[1]].any():
                continue
            self.occupied[x : x + size[0], y : y + size[1]] = True
            slack = np.array(size) * CELL - footprint
            at_x, at_y = np.array([x, y]) * CELL + self.rng.uniform(0.0, slack)
            return Place((x, y), (float(at_x), float(at_y)))
        return None

    def anywhere(self, size: Cell) -> Cell:
        """Draws any cell but those at the edge."""
        return self._draw((1, self.cells - size[0] - 1), (1, self.cells - size[1] - 1))

    def near(self, cell: Cell, distance: int) -> DrawCell:
        """Returns a function that draws cells at most `distance` away from `cell` on either axis."""
        low = [max(1, place - distance) for place in cell]
        high = [min(self.cells - 1, place + distance) for place in cell]
        return lambda size: self._draw((low[0], high[0]), (low[1], high[1]))

    def in_quadrant(self, size: Cell) -> Cell:
        """Draws cells of large x and small y."""
        middle = self.cells // 2
        return self._draw((self.cells - middle, self.cells - size[0] - 1), (1, middle - size[1] - 1))

    def outside_quadrant(self, size: Cell) -> Cell:
        """Draws cells of one of the other three quadrants."""
        middle = self.cells // 2
        low = [(1, middle - extent - 1) for extent in size]
        high = [(self.cells - middle, self.cells - extent - 1) for extent in size]
        quadrants = [(low[0], low[1]), (low[0], high[1]), (high[0], high[1])]
        return self._draw(*quadrants[self.rng.integers(len(quadrants))])

    def _draw(self, x: tuple[int, int], y: tuple[int, int]) -> Cell:
        return int(self.rng.integers(*x)), int(self.rng.integers(*y))


def cells_of(footprint: tuple[float, float]) -> Cell:
    """Returns the number of cells of a thing on either axis."""
    x, y = (int(np.ceil(extent / CELL - 1e-9)) for extent in footprint)
    return x, y
