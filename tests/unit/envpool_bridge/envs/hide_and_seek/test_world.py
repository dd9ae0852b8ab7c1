"""What the world lets agents do: doors, ramps, walls."""

import numpy as np
import pytest

from envpool_bridge.envs.hide_and_seek.walls import Wall, outer_walls
from tests.support.arena import ENGINES, act, arena, center

pytestmark = pytest.mark.parametrize("engine", ENGINES)

# A wall along x at y = 3.1 with a door of cells 14 and 15: 2.75 to 3.45.
WITH_DOOR = (Wall((0, 15), (13, 15)), Wall((16, 15), (29, 15)))


@pytest.mark.parametrize(("x", "passes"), [(3.0, True), (2.85, True), (3.2, True), (2.0, False)])
def test_agent_passes_a_door_but_not_the_wall(engine, x, passes):
    env = arena([(x, 4.5)], [(1.0, 1.0)], walls=[*outer_walls(30), *WITH_DOOR], engine=engine)
    act(env, 12, hider_0=(5, 1, 5, 0, 0))
    assert (center(env, 0)[1] < 2.0) == passes
    assert center(env, 0)[1] < 3.4  # it has come to the wall


def test_agents_leave_the_arena_only_without_outer_walls(engine):
    for walls, leaves in ((outer_walls(30), False), ((), True)):
        env = arena([(5.0, 4.0)], walls=walls, engine=engine)
        act(env, 12, hider_0=(10, 5, 5, 0, 0))
        assert (center(env, 0)[0] > 6.5) == leaves


def test_boxes_can_be_pushed_to_walls_and_no_farther(engine):
    env = arena([(3.0, 3.45)], boxes=[(3.0, 3.0)], engine=engine)
    act(env, 30, hider_0=(5, 0, 5, 0, 0))
    assert center(env, 2)[1] == pytest.approx(0.15 + 0.25, abs=0.03)


def test_a_ramp_against_a_wall_can_be_climbed_from_its_low_side(engine):
    env = arena([(3.0, 1.2)], ramps=[(3.0, 0.42)], engine=engine)
    highest = 0.0
    for _ in range(30):
        act(env, hider_0=(5, 0, 5, 0, 0))
        highest = max(highest, center(env, 0)[2])
    assert highest == pytest.approx(0.58, abs=0.02)  # 0.15 on the floor; measured of the original


def test_an_agent_on_a_ramp_gets_over_an_inner_wall(engine):
    wall = Wall((0, 8), (29, 8))  # y 1.65 to 1.75, 0.5 m high
    env = arena([(3.0, 3.2)], ramps=[(3.0, 2.02)], walls=[*outer_walls(30), wall], engine=engine)
    act(env, 40, hider_0=(5, 0, 5, 0, 0))
    assert center(env, 0)[1] < 1.6
    env = arena([(3.0, 3.2)], walls=[*outer_walls(30), wall], engine=engine)
    act(env, 40, hider_0=(5, 0, 5, 0, 0))
    assert center(env, 0)[1] > 1.75


def test_a_ramp_that_nothing_holds_slides_away(engine):
    env = arena([(3.0, 4.2)], ramps=[(3.0, 3.4)], engine=engine)
    act(env, 6, hider_0=(5, 0, 5, 0, 0))
    assert center(env, 2)[1] < 3.1
    assert np.abs(center(env, 2)[0] - 3.0) < 0.1
