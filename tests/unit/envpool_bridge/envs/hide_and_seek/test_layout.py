"""What begins where."""

import itertools

import numpy as np
import pytest

from envpool_bridge.envs.hide_and_seek import layout as layout_module
from envpool_bridge.envs.hide_and_seek.game import Base, RandomWalls
from envpool_bridge.envs.hide_and_seek.layout import draw_layout
from envpool_bridge.envs.hide_and_seek.placement import Grid, cells_of
from envpool_bridge.errors import UserError


def drawn(game, count):
    return [draw_layout(game, np.random.default_rng(seed)) for seed in range(count)]


def rectangles(layout):
    """[K, 4] low x, low y, high x, high y of everything."""
    corners = np.concatenate([layout.agents, layout.boxes, layout.ramps])
    sizes = [*[(0.3, 0.3)] * len(layout.agents), *layout.box_sizes[:, :2], *[(0.5, 0.5)] * len(layout.ramps)]
    return np.concatenate([corners, corners + np.array(sizes)], axis=1)


def test_random_walls_have_3_to_9_boxes_with_3_long_ones():
    layouts = drawn(RandomWalls(), 80)
    assert {len(layout.boxes) for layout in layouts} == set(range(3, 10))
    for layout in layouts:
        assert len(layout.ramps) == 2
        kinds = [tuple(size) for size in layout.box_sizes]
        assert set(kinds) <= {(1.65, 0.15, 0.5), (0.15, 1.65, 0.5), (0.5, 0.5, 0.5)}
        order = [[(1.65, 0.15, 0.5), (0.15, 1.65, 0.5), (0.5, 0.5, 0.5)].index(kind) for kind in kinds]
        assert order == sorted(order)
        assert sum(place < 2 for place in order) >= 3


def test_the_quadrant_game_has_2_square_boxes_and_a_ramp():
    for layout in drawn(Base(), 10):
        assert layout.box_sizes.tolist() == [[0.5, 0.5, 0.5]] * 2
        assert len(layout.ramps) == 1


@pytest.mark.parametrize("game", [Base(3, 3), RandomWalls(3, 3)], ids=["base", "randomwalls"])
def test_layout_has_no_overlaps(game):
    for layout in drawn(game, 15):
        walls = [
            [wall.start[0] * 0.2 + 0.05, wall.start[1] * 0.2 + 0.05, wall.end[0] * 0.2 + 0.15, wall.end[1] * 0.2 + 0.15]
            for wall in layout.walls
        ]
        things = rectangles(layout)
        assert (things[:, :2] >= 0.2).all()
        for a, b in [*itertools.combinations(things, 2), *itertools.product(things, walls)]:
            overlap = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
            assert min(overlap) <= 1e-9


def test_layout_of_random_walls_keeps_teams_together():
    apart = []
    for layout in drawn(RandomWalls(3, 3), 40):
        for team in (layout.agents[:3], layout.agents[3:]):
            apart += [np.abs(team[1:] - team[0]).max()]
    # At most three cells between lower left cells, and agents lie anywhere in theirs (0.1 m).
    assert 0.55 < max(apart) <= 0.6 + 0.1


def test_quadrant_layout_has_boxes_inside_and_seekers_outside():
    quadrants = set()
    for layout in drawn(Base(1, 1), 120):
        assert ((layout.boxes >= (3.0, 0.2)) & (layout.boxes + 0.5 <= (5.8, 2.8))).all()
        x, y = layout.agents[1] // 3.0
        quadrants.add((int(x), int(y)))
    assert quadrants == {(0, 0), (0, 1), (1, 1)}


def test_a_seed_decides_the_layout():
    one, same, other = (draw_layout(RandomWalls(), np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert one.walls == same.walls
    for name in ("agents", "boxes", "box_sizes", "ramps"):
        assert np.array_equal(getattr(one, name), getattr(same, name))
    assert not np.array_equal(one.agents, other.agents)


@pytest.mark.parametrize(
    ("footprint", "cells"),
    [((0.3, 0.3), (2, 2)), ((0.5, 0.5), (3, 3)), ((1.65, 0.15), (9, 1)), ((0.15, 1.65), (1, 9)), ((0.2, 0.4), (1, 2))],
)
def test_a_thing_takes_the_cells_that_its_footprint_needs(footprint, cells):
    assert cells_of(footprint) == cells


def test_a_place_is_any_free_cell_and_anywhere_within_its_cells():
    grid = Grid(30, [], np.random.default_rng(0))
    cells, offsets = set(), []
    for _ in range(3000):
        grid.occupied[:] = False
        place = grid.place((0.3, 0.3), grid.anywhere)
        cells.update(place.cell)
        offsets.append(np.array(place.corner) - np.array(place.cell) * 0.2)
        assert grid.occupied.sum() == 4
    assert cells == set(range(1, 27))  # randint(1, 30 - 2 - 1)
    assert 0.0 <= np.min(offsets) < 0.005
    assert 0.095 < np.max(offsets) <= 0.1
    grid.occupied[:] = True
    assert grid.place((0.3, 0.3), grid.anywhere) is None


def test_team_sizes_may_be_drawn_for_each_episode():
    sizes = {
        (layout.num_hiders, layout.num_agents - layout.num_hiders)
        for layout in drawn(Base(3, 2, random_team_sizes=True), 60)
    }
    assert sizes == {(h, s) for h in (1, 2, 3) for s in (1, 2)}


def test_a_larger_map_has_more_cells():
    layouts = drawn(RandomWalls(map_scale=1.5, outside_walls=1.0), 8)
    assert RandomWalls(map_scale=1.5).floor_size == pytest.approx(9.0)
    assert max(layout.agents.max() for layout in layouts) > 6.0
    assert {wall.end for wall in layouts[0].walls if wall.outer} == {(0, 44), (44, 0), (44, 44)}


def test_layout_rejects_a_crowded_floor(monkeypatch):
    monkeypatch.setattr(layout_module, "_ATTEMPTS", 2)
    with pytest.raises(UserError, match=r"2 attempts found no layout for \(90, 90\) boxes and 2 ramps.*use fewer"):
        draw_layout(RandomWalls(boxes=(90, 90)), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"hiders": 0}, r"hiders and seekers must be 1 to 3 each, got \(0, 2\)"),
        ({"seekers": 4}, r"hiders and seekers must be 1 to 3 each, got \(2, 4\)"),
        ({"max_agents": 3}, "max_agents must be 0 or at least 4, got 3"),
        ({"horizon": 0}, "horizon must be at least 1, got 0"),
        ({"prep_fraction": 1.5}, r"prep_fraction must be in \[0, 1\], got 1.5"),
        ({"boxes": [4, 3]}, r"boxes must be \[fewest, most\].*got \(4, 3\)"),
        ({"boxes": (1, 9)}, r"elongated_boxes must be .*at most the fewest boxes, got \(3, 9\)"),
        ({"rooms": 0}, "rooms must be 1 to 8, got 0"),
        ({"map_scale": 0.5}, r"map_scale must be in \[1, 4\], got 0.5"),
    ],
)
def test_game_rejects_impossible_rules(rules, message):
    with pytest.raises(UserError, match=message):
        RandomWalls(**rules)
