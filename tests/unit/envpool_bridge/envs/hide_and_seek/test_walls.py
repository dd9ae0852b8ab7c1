"""Walls on the grid: where they may be, and their doors."""

import itertools

import numpy as np
import pytest

from envpool_bridge.envs.hide_and_seek.game import Base, RandomWalls
from envpool_bridge.envs.hide_and_seek.walls import Wall, outer_walls, quadrant_walls, random_walls


def walls_of(seed, **rules):
    walls = random_walls(RandomWalls(**rules), np.random.default_rng(seed))
    assert walls is not None
    return walls.pieces


def cells_of(wall):
    (x, y), (to_x, to_y) = wall.start, wall.end
    return {(i, j) for i in range(x, to_x + 1) for j in range(y, to_y + 1)}


def lines_of(walls):
    """Inner pieces joined along their lines: {(axis, place across): covered offsets}."""
    lines = {}
    for wall in walls:
        if not wall.outer:
            covered = {cell[wall.axis] for cell in cells_of(wall)}
            lines.setdefault((wall.axis, wall.start[1 - wall.axis]), set()).update(covered)
    return lines


def test_outer_walls_are_the_four_edges_of_the_grid():
    assert set().union(*map(cells_of, outer_walls(30))) == {
        (i, j) for i in range(30) for j in range(30) if {i, j} & {0, 29}
    }


def test_quadrant_walls_have_doors_of_two_cells_anywhere():
    upright, level = set(), set()
    for seed in range(300):
        lines = lines_of(quadrant_walls(Base(one_door=0.0), np.random.default_rng(seed)).pieces)
        # A piece of no length is left out, and with it the cell of a corner that a neighbor has anyway.
        upright.add(tuple(sorted(set(range(1, 15)) - lines[1, 15])))
        level.add(tuple(sorted(set(range(16, 29)) - lines[0, 15])))
    assert upright == {(k, k + 1) for k in range(1, 14)}
    assert level == {(k, k + 1) for k in range(16, 28)}


def test_a_stretch_that_is_too_short_for_a_door_has_none():
    lines = lines_of(quadrant_walls(Base(one_door=0.0, door_size=14), np.random.default_rng(0)).pieces)
    assert lines == {
        (0, 15): set(range(15, 30))
    }  # 15 cells were just enough for the upright wall, 14 are not for this one


def test_one_door_closes_either_wall_with_equal_probability():
    whole = []
    for seed in range(400):
        lines = lines_of(quadrant_walls(Base(), np.random.default_rng(seed)).pieces)
        whole.append((set(range(16)) <= lines[1, 15], set(range(15, 30)) <= lines[0, 15]))
    counts = {pair: whole.count(pair) / len(whole) for pair in ((True, False), (False, True), (False, False))}
    assert sum(counts.values()) == 1.0
    assert counts[True, False] == pytest.approx(0.25, abs=0.07)
    assert counts[False, True] == pytest.approx(0.25, abs=0.07)


def test_room_walls_keep_distance_and_have_a_door():
    places, doors = set(), set()
    for seed in range(400):
        ((axis, place), covered), *others = lines_of(walls_of(seed, rooms=2, random_rooms=False)).items()
        assert not others
        assert axis in (0, 1)
        places.add(place)
        doors.add(tuple(sorted(set(range(1, 29)) - covered)))
    assert places == set(range(7, 23))
    assert doors == {(k, k + 1) for k in range(1, 28)}


def test_the_number_of_rooms_is_drawn_from_one_to_four():
    counts = [len(lines_of(walls_of(seed))) for seed in range(150)]
    assert set(counts) == {0, 1, 2, 3}  # each room but the first has one wall
    assert {len(lines_of(walls_of(seed, random_rooms=False))) for seed in range(20)} == {3}


def test_outer_walls_stand_with_probability_one_half():
    standing = [sum(wall.outer for wall in walls_of(seed)) for seed in range(300)]
    assert set(standing) == {0, 4}
    assert np.mean(standing) / 4 == pytest.approx(0.5, abs=0.09)


def test_inner_walls_never_cross():
    pairs = 0
    for seed in range(60):
        lines = lines_of(walls_of(seed, random_rooms=False)).items()
        level = [(place, covered) for (axis, place), covered in lines if axis == 0]
        upright = [(place, covered) for (axis, place), covered in lines if axis == 1]
        for (row, columns), (column, rows) in itertools.product(level, upright):
            pairs += 1
            assert not (min(columns) < column < max(columns) and min(rows) < row < max(rows))
    assert pairs > 20


def test_a_wall_knows_its_axis_and_length():
    assert (Wall((3, 4), (3, 9)).axis, Wall((3, 4), (3, 9)).length) == (1, 5)
    assert (Wall((3, 4), (8, 4)).axis, Wall((3, 4), (8, 4)).length) == (0, 5)
