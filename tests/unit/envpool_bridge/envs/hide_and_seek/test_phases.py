"""Signals of the phases of learning, in hand-made episodes of both engines."""

import dataclasses

import numpy as np
import pytest

from envpool_bridge.envs.hide_and_seek.game import SIGNAL_NAMES, Base
from envpool_bridge.envs.hide_and_seek.layout import RAMP_SIZE
from envpool_bridge.envs.hide_and_seek.walls import Wall, outer_walls
from tests.support.arena import ENGINES, LOCK, act, arena, layout_of, make_game

# The room of large x and small y, with a door of 0.7 m about (3.1, 1.6) in its upright wall.
_ROOM = (*outer_walls(30), Wall((15, 0), (15, 6)), Wall((15, 9), (15, 15)), Wall((15, 15), (29, 15)))
_DOOR = Wall((15, 6), (15, 9))
_IN_DOOR = (3.1, 1.6)


def quadrant(engine, hider, seeker=(1.0, 1.0), boxes=(_IN_DOOR,), ramps=((1.0, 5.0),), **rules):
    rules = {"boxes": (0, len(boxes)), "ramps": len(ramps), "horizon": 4, "prep_fraction": 0.5, **rules}
    env = make_game(Base(hiders=1, seekers=1, **rules), engine)
    layout = layout_of((hider,), (seeker,), boxes, ramps, _ROOM)
    env.reset(seed=0, options={"layout": dataclasses.replace(layout, doors=(_DOOR,))})
    return env


def signals_of(env, **actions):
    infos = {}
    while env.agents:
        infos = act(env, **actions)[-1]
    return {name: infos["seeker_0"][name] for name in SIGNAL_NAMES}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("hider", "seeker", "box", "closed", "sheltered"),
    [
        ((5.0, 1.0), (1.0, 1.0), _IN_DOOR, True, True),
        ((5.0, 1.0), (1.0, 1.0), (3.1, 1.55), True, True),
        ((5.0, 1.0), (1.0, 1.0), (4.5, 2.0), False, False),  # the box is elsewhere
        ((5.0, 1.0), (4.0, 1.0), _IN_DOOR, False, False),  # the seeker is inside, too
        ((1.0, 3.0), (1.0, 1.0), _IN_DOOR, False, False),  # the hider is outside
        ((5.0, 1.0), (1.0, 1.0), (3.42, 1.6), False, True),  # the box is behind the door, which it blocks
        ((5.65, 2.85), (1.0, 1.0), (4.9, 2.7), False, False),  # a corner that stays open
    ],
)
def test_door_closing_and_shelter_when_preparation_ends(engine, hider, seeker, box, closed, sheltered):
    signals = signals_of(quadrant(engine, hider, seeker, (box,)))
    assert (signals["door_closing"], signals["sheltered_prep"]) == (closed, sheltered)


@pytest.mark.parametrize("engine", ENGINES)
def test_door_closing_needs_each_door_of_the_hiders_rooms(engine):
    """Two rooms with a door each, one behind the other: the second door matters once the hider is behind it."""
    walls = [*outer_walls(30), *(Wall((x, low), (x, high)) for x in (10, 20) for low, high in ((0, 6), (9, 29)))]
    doors = tuple(Wall((x, 6), (x, 9)) for x in (10, 20))
    closing = {}
    for place in (1.0, 3.0, 5.0):
        env = make_game(Base(hiders=1, seekers=1, boxes=(0, 1), ramps=0, horizon=4, prep_fraction=0.5), engine)
        layout = layout_of(((place, 4.0),), ((1.5, 5.0),), ((4.1, 1.6),), (), walls)
        env.reset(seed=0, options={"layout": dataclasses.replace(layout, doors=doors)})
        closing[place] = signals_of(env)["door_closing"]
    assert closing == {1.0: 0.0, 3.0: 0.0, 5.0: 1.0}


@pytest.mark.parametrize("engine", ENGINES)
def test_ramps_are_defended_inside_or_locked(engine):
    inside, outside = (5.0, 2.0), (1.0, 5.0)
    both = signals_of(quadrant(engine, (5.0, 1.0), ramps=(inside, outside)))
    assert both["ramp_defence"] == 0.5
    assert signals_of(quadrant(engine, (1.0, 1.5), ramps=(inside, outside)))["ramp_defence"] == 0.0
    near = (1.0, 4.25)  # agents start with their fronts towards -y
    locked = signals_of(quadrant(engine, near, ramps=((1.0, 3.8),), locks_ramps=True), hider_0=LOCK)
    assert locked["ramp_defence"] == 1.0
    assert (
        signals_of(quadrant(engine, near, ramps=((1.0, 3.8),), locks_ramps=False), hider_0=LOCK)["ramp_defence"] == 0.0
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("x", "uses"), [(4.0, 1.0), (2.0, 0.0)])
def test_ramp_use_is_a_seeker_above_a_wall(engine, x, uses):
    """The ramp leans on a wall of x >= 3; the other seeker goes around its end, on the floor."""
    walls = [*outer_walls(30), Wall((15, 15), (29, 15))]
    ramp = (4.0, 3.15 + RAMP_SIZE / 2 + 0.005)
    env = arena(((1.0, 1.0),), ((x, 4.2),), ramps=(ramp,), walls=walls, game=Base, horizon=25, engine=engine)
    signals = signals_of(env, seeker_0=(5, 0, 5, 0, 0))
    assert env.game.horizon == 25
    assert signals["ramp_use"] == uses


@pytest.mark.parametrize("engine", ENGINES)
def test_chasing_is_coming_nearer_to_a_hider_in_sight(engine):
    shares = {}
    for name, action in (("still", (5, 5, 5, 0, 0)), ("towards", (5, 3, 5, 0, 0)), ("away", (5, 7, 5, 0, 0))):
        env = arena(((3.0, 1.0),), ((3.0, 4.0),), game=Base, horizon=4, engine=engine)
        shares[name] = signals_of(env, seeker_0=action)["chase_fraction"]
    assert shares == {"still": 0.0, "towards": 1.0, "away": 0.0}
    hidden = arena(((3.0, 5.5),), ((3.0, 4.0),), game=Base, horizon=4, engine=engine)
    assert signals_of(hidden, seeker_0=(5, 7, 5, 0, 0))["chase_fraction"] == 0.0


def test_surfing_is_the_way_of_a_box_under_a_seeker():
    phases = pytest.importorskip("envpool_bridge.envs.hide_and_seek.phases")
    poses = np.zeros((4, phases.POSE_COLUMNS))  # a hider, a seeker, two boxes
    poses[:, phases.POSE_COS] = 1.0
    poses[2:, [phases.POSE_HALF_X, phases.POSE_HALF_Y]] = 0.25
    poses[:, :2] = (5.0, 5.0), (1.0, 1.0), (1.1, 1.1), (3.0, 3.0)
    after = poses.copy()
    after[1:, 0] += 0.3
    for feet, travelled in ((0.5, 0.3), (0.0, 0.0)):
        poses[1, phases.FEET] = after[1, phases.FEET] = feet
        signals = np.zeros(len(SIGNAL_NAMES))
        phases.count_step(signals, poses, after, np.zeros((2, 2), int), np.zeros((0, 5)), (1, 2, 2, True))
        assert signals[SIGNAL_NAMES.index("surf_distance")] == pytest.approx(travelled)
