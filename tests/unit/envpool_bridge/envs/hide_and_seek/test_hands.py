"""Grips and locks, by driving the simulation. An agent at turn 0 looks towards -y, where the tests put what it should see."""

import numpy as np
import pytest

from envpool_bridge.envs.hide_and_seek.game import Base
from envpool_bridge.envs.hide_and_seek.geometry import distance_to_cuboids
from tests.support.arena import (
    ENGINES,
    LOCK,
    PULL,
    act,
    arena,
    center,
    held,
    locked,
    locks,
    pose,
    put,
    reseed,
    see_all_things,
    seen,
)

FAR = (1.0, 1.0)
engines = pytest.mark.parametrize("engine", ENGINES)


def before(box, gap=0.05):
    """A place from which an agent looks at a square thing, its shell at so many metres."""
    return box[0], box[1] + 0.25 + 0.15 + gap


@engines
@pytest.mark.parametrize("sleeps_before", [0, 30])
def test_a_box_that_is_held_follows_within_5_millimetres(engine, sleeps_before):
    env = arena([before((3.0, 0.8))], boxes=[(3.0, 0.8)], engine=engine)
    act(env, sleeps_before)  # what lies still is asleep by then
    offset = center(env, 2) - center(env, 0)
    start = center(env, 2)
    act(env, 5, hider_0=(5, 10, 5, 1, 0))
    assert held(env) == [0, -1]
    assert np.linalg.norm(center(env, 2) - start) > 0.5
    assert np.abs(center(env, 2) - center(env, 0) - offset).max() < 5e-3
    act(env, 2)
    stays = center(env, 2)
    act(env, 5, hider_0=(5, 10, 5, 0, 0))
    assert np.linalg.norm(center(env, 2) - stays) < 0.5  # it slides to a stop
    assert np.linalg.norm(center(env, 0) - center(env, 2)) > 1.0


@engines
def test_a_turned_box_is_held_as_it_was_taken(engine):
    box = (3.0, 3.0)
    env = arena([before(box, 0.08)], boxes=[box], engine=engine)
    put(env, 2, turn=0.4)
    put(env, 0, turn=-0.5)
    act(env, hider_0=PULL)

    def relative():
        turn = pose(env, 0)[3]
        away = (center(env, 2) - center(env, 0))[:2]
        rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
        return np.array([*(rotation @ away), pose(env, 2)[3] - turn])

    taken = relative()
    for action in ((5, 6, 5, 1, 0), (5, 5, 6, 1, 0)):
        act(env, 6, hider_0=action)
        assert held(env)[0] == 0
        assert np.abs(relative() - taken).max() < 0.02
    assert abs(pose(env, 0)[3] + 0.5) > 0.3  # it has turned, and the box with it


@engines
@pytest.mark.parametrize(("gap", "holds"), [(0.09, True), (0.11, False)])
def test_hands_reach_25_centimetres_from_the_middle_of_an_agent(engine, gap, holds):
    env = arena([before((3.0, 3.0), gap)], boxes=[(3.0, 3.0)], engine=engine)
    act(env, hider_0=PULL)
    assert (held(env)[0] == 0) == holds


@engines
def test_hands_reach_only_things_seen_in_the_last_step(engine):
    for action, works in (
        (PULL, lambda env: held(env)[0] == 0),
        (LOCK, lambda env: locked(env) == [True]),
    ):
        env = arena([before((3.0, 3.0))], boxes=[(3.0, 3.0)], engine=engine)
        put(env, 0, turn=np.pi)
        assert not seen(env)[1][0, 0]
        act(env, hider_0=action)
        assert not works(env)
        see_all_things(env)  # in the last step
        act(env, hider_0=action)
        assert works(env)


@engines
def test_the_nearest_thing_is_taken(engine):
    env = arena([(3.0, 3.0)], boxes=[(3.0 + 0.3, 2.52), (3.0 - 0.3, 2.54)], seekers=[FAR], engine=engine)
    assert seen(env)[1][0].all()
    act(env, hider_0=PULL)
    assert held(env)[0] == 1


@engines
def test_grips_let_several_agents_hold_one_box(engine):
    env = arena([before((3.0, 3.0)), (3.0, 2.55)], boxes=[(3.0, 3.0)], engine=engine)
    put(env, 1, turn=np.pi)
    act(env, hider_0=PULL, hider_1=PULL)
    assert held(env) == [0, 0, -1]
    start = center(env, 3)
    act(env, 5, hider_0=(10, 5, 5, 1, 0), hider_1=(10, 5, 5, 1, 0))
    assert center(env, 3)[0] > start[0] + 0.5
    act(env, hider_1=PULL)
    assert held(env) == [-1, 0, -1]


@engines
def test_ramps_can_be_held_and_locked(engine):
    env = arena([before((3.0, 3.0))], ramps=[(3.0, 3.0)], engine=engine)
    put(env, 0, (3.0, 2.5), turn=np.pi)  # at its upright side
    act(env, hider_0=(5, 5, 5, 1, 1))
    assert held(env)[0] == 0
    assert locked(env) == [True]


@engines
def test_locked_box_moves_less_than_two_millimetres(engine):
    env = arena([(3.0, 3.42)], [FAR], boxes=[(3.0, 3.0)], engine=engine)
    act(env, 3, hider_0=LOCK)
    assert locked(env) == [True]
    start = pose(env, 2)
    act(env, 12, hider_0=(5, 0, 5, 0, 1))
    assert np.abs(pose(env, 2) - start).max() < 2e-3
    # Unlocked, the same push moves it.
    act(env)
    assert locked(env) == [False]
    put(env, 0, (1.0, 5.0))
    put(env, 1, (3.5, 3.0))
    act(env, 12, seeker_0=(0, 5, 5, 0, 0))
    assert center(env, 2)[0] < 2.5


@engines
def test_lock_stops_a_pulled_box_and_its_holder(engine):
    env = arena([before((3.0, 3.0))], boxes=[(3.0, 3.0)], engine=engine)
    act(env, 4, hider_0=(5, 10, 5, 1, 0))
    act(env, hider_0=(5, 10, 5, 1, 1))
    act(env, hider_0=(5, 10, 5, 1, 1))
    box, agent = center(env, 2), center(env, 0)
    act(env, 10, hider_0=(5, 10, 5, 1, 1))
    assert np.abs(center(env, 2) - box).max() < 0.02
    assert np.abs(center(env, 0) - agent).max() < 0.05


@engines
def test_lock_is_released_only_by_its_own_team(engine):
    box = (3.0, 3.0)
    env = arena([before(box), FAR], [(5.0, 5.0)], boxes=[box], engine=engine)
    act(env, hider_0=LOCK)
    put(env, 0, (1.0, 5.0))
    act(env, 3)
    assert locked(env) == [True]  # nobody is near
    put(env, 2, before(box))
    for action in ((5, 5, 5, 0, 0), LOCK, PULL):
        act(env, 2, seeker_0=action)
        assert locked(env) == [True]
        assert locks(env)[1] == [0]
    put(env, 2, (5.0, 5.0))
    put(env, 1, before(box), turn=np.pi)  # a team-mate who looks away
    act(env)
    assert locked(env) == [True]
    put(env, 1, turn=0.0)
    act(env)
    assert locked(env) == [False]
    assert locks(env)[1] == [0]  # the last that locked, still
    act(env, 6, hider_1=(5, 0, 5, 0, 0))
    assert center(env, 3)[1] < 2.7


@engines
def test_lock_is_vetoed_by_a_team_mate_without_press(engine):
    box = (3.0, 3.0)
    env = arena([(2.87, 3.45), (3.17, 3.45)], boxes=[box], engine=engine)
    act(env, hider_0=LOCK)
    assert locked(env) == [False]
    act(env, hider_0=LOCK, hider_1=LOCK)
    assert locked(env) == [True]
    act(env, hider_0=LOCK)
    assert locked(env) == [False]


@engines
def test_lock_veto_depends_on_the_last_locking_team(engine):
    box = (3.0, 3.0)
    env = arena([before(box)], [(3.0, 2.55)], boxes=[box], engine=engine)
    put(env, 1, turn=np.pi)
    act(env, seeker_0=LOCK)
    assert locked(env) == [False]  # the hider's
    act(env, hider_0=LOCK)
    assert locked(env) == [True]  # the seeker, near and not pressing, has no say
    act(env)
    put(env, 0, FAR)
    act(env, seeker_0=LOCK)
    assert (locked(env), locks(env)[1]) == ([True], [1])
    put(env, 0, before(box))
    act(env)
    assert locked(env) == [False]  # by the seeker, which no longer presses
    act(env, hider_0=LOCK)
    assert locked(env) == [False]  # it is the seekers' now, and one of them vetoes


@engines
def test_ramps_of_the_quadrant_game_have_no_locks(engine):
    env = arena([(3.0, 2.55)], boxes=[(3.35, 3.0)], ramps=[(2.75, 3.0)], game=Base, engine=engine)
    put(env, 0, turn=np.pi)
    act(env, hider_0=LOCK)
    assert seen(env)[1][0].all()
    assert locked(env) == [True, False]


@engines
def test_one_press_locks_everything_near(engine):
    lockers = set()
    for seed in range(12):
        env = arena([(2.87, 3.47), (3.17, 3.47)], boxes=[(2.7, 3.0), (3.3, 3.0)], seekers=[FAR], engine=engine)
        reseed(env, seed)
        act(env, hider_0=LOCK, hider_1=LOCK)
        assert locked(env) == [True, True]
        lockers.add(tuple(locks(env)[1]))
    assert {locker for pair in lockers for locker in pair} == {0, 1}


def test_distances_are_those_to_turned_cuboids():
    rng = np.random.default_rng(0)
    centers, turns, half = rng.normal(size=(6, 3)), rng.uniform(-9, 9, 6), rng.uniform(0.1, 0.6, (6, 3))
    points = rng.normal(size=(5, 3))
    got = distance_to_cuboids(points, centers, turns, half)
    for a in range(5):
        for m in range(6):
            cos, sin = np.cos(turns[m]), np.sin(turns[m])
            rotation = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])
            own = rotation.T @ (points[a] - centers[m])
            nearest = np.clip(own, -half[m], half[m])
            assert got[a, m] == pytest.approx(np.linalg.norm(own - nearest))
    assert distance_to_cuboids(centers[:1], centers[:1], turns[:1], half[:1]) == 0.0
