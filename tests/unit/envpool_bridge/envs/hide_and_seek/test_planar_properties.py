"""Properties of the planar kernel for any positions and actions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from envpool_bridge.envs.hide_and_seek.game import Base, RandomWalls
from envpool_bridge.envs.hide_and_seek.phases import FEET, POSE_X, POSE_Y
from envpool_bridge.envs.hide_and_seek.planar.physics import AGENT_DAMPING, SECONDS, SUBSTEPS
from envpool_bridge.envs.hide_and_seek.planar.state import VX, VY, Z
from envpool_bridge.envs.hide_and_seek.spaces import ACTION_SIZES
from envpool_bridge.envs.hide_and_seek.walls import Wall, outer_walls
from envpool_bridge.envs.suites.hide_and_seek import make_planar
from tests.support.arena import arena

FEW = settings(max_examples=20, deadline=None, derandomize=True)
forces = st.lists(st.tuples(*[st.integers(0, 10)] * 4), min_size=6, max_size=6)
places = st.tuples(st.floats(0.5, 2.2), st.floats(0.5, 2.2))


def play(env, actions):
    """Steps two hiders with forces (x, y, x, y) a step; returns the poses after each step."""
    poses = []
    for x, y, other_x, other_y in actions:
        still = np.array((5, 5, 5, 0, 0))
        env.step(
            {"hider_0": np.array((x, y, 5, 0, 0)), "hider_1": np.array((other_x, other_y, 5, 0, 0)), "seeker_0": still}
        )
        poses.append(env.worlds["now"][0].copy())
    return np.array(poses)


@FEW
@given(places, st.tuples(st.floats(3.6, 5.4), st.floats(0.5, 2.2)), forces)
def test_a_map_turned_by_90_degrees_plays_alike(box, first, actions):
    def turned(point):
        return 6.0 - point[1], point[0]

    walls = [*outer_walls(30), Wall((3, 18), (26, 18))]
    agents, seeker = (first, (5.0, 5.0)), (1.0, 5.0)
    one = play(arena(agents, (seeker,), boxes=(box,), walls=walls, engine="planar"), actions)
    env = arena(
        tuple(map(turned, agents)),
        (turned(seeker),),
        boxes=(turned(box),),
        walls=list(map(_turned_wall, walls)),  # in the same order, in which contacts are solved
        engine="planar",
    )
    other = play(env, [(10 - y, x, 10 - other_y, other_x) for x, y, other_x, other_y in actions])
    bodies = slice(0, 4)
    np.testing.assert_allclose(other[:, bodies, POSE_X], 6.0 - one[:, bodies, POSE_Y], atol=1e-6)
    np.testing.assert_allclose(other[:, bodies, POSE_Y], one[:, bodies, POSE_X], atol=1e-6)


def _turned_wall(wall):
    """Returns a wall of the turned map: cell (x, y) becomes (29 - y, x)."""
    cells = sorted((29 - y, x) for x, y in (wall.start, wall.end))
    return Wall(cells[0], cells[1], wall.outer)


@FEW
@given(places, places, forces)
def test_agents_that_change_places_change_paths(one, other, actions):
    """Each has a half of the floor, with a box."""
    far = other[0] + 3.2, other[1]
    walls = [*outer_walls(30), Wall((15, 0), (15, 29))]
    boxes = ((1.35, 3.0), (4.6, 3.0))
    first = play(arena((one, far), ((1.0, 5.0),), boxes=boxes, walls=walls, engine="planar"), actions)
    swapped = [(c, d, a, b) for a, b, c, d in actions]
    second = play(arena((far, one), ((1.0, 5.0),), boxes=boxes, walls=walls, engine="planar"), swapped)
    np.testing.assert_allclose(second[:, [1, 0, 2, 3, 4]], first[:, :5], atol=1e-9)


@FEW
@given(st.tuples(*[st.floats(-4.0, 4.0)] * 4), st.floats(0.31, 0.4), st.floats(0.0, 6.28))
def test_a_collision_in_the_air_keeps_momentum(velocity, distance, angle):
    """Above the floor only damping changes it, by a known factor."""
    away = distance * np.cos(angle), distance * np.sin(angle)
    env = arena(((3.0, 3.0), (3.0 + away[0], 3.0 + away[1])), ((1.0, 1.0),), engine="planar")
    body = env.worlds["body"][0]
    body[:2, Z] = 2.0
    body[:2, [VX, VY]] = np.reshape(velocity, (2, 2))
    before = body[:2, [VX, VY]].copy()
    play(env, [(5, 5, 5, 5)])
    kept = (1.0 / (1.0 + SECONDS * AGENT_DAMPING)) ** SUBSTEPS
    np.testing.assert_allclose(body[:2, [VX, VY]].sum(axis=0), before.sum(axis=0) * kept, atol=1e-9)


def test_a_collision_does_change_velocities():
    env = arena(((3.0, 3.0), (3.35, 3.0)), ((1.0, 1.0),), engine="planar")
    body = env.worlds["body"][0]
    body[:2, Z], body[0, VX], body[1, VX] = 2.0, 3.0, -3.0
    play(env, [(5, 5, 5, 5)])
    assert body[0, VX] <= 1e-9 <= body[1, VX] + 2e-9


@FEW
@given(st.integers(0, 2**31), st.sampled_from([Base(2, 2), Base(3, 3), RandomWalls(2, 2), RandomWalls(3, 3)]))
def test_nothing_passes_through_a_wall(seed, game):
    env, rng = make_planar(game), np.random.default_rng(seed)
    env.reset(seed=seed)
    world = env.worlds[0]
    bodies, agents = world["num_agents"] + world["num_things"], world["num_agents"]
    before, actions = world["now"][:bodies].copy(), {}
    for step in range(60):
        if step % 6 == 0:
            actions = {name: rng.integers(0, ACTION_SIZES) for name in env.agents}
        env.step({name: action.copy() for name, action in actions.items()})
        now = world["now"][:bodies].copy()
        assert np.isfinite(world["body"]).all()
        assert not world["discarded"]
        low = np.maximum(before[:, FEET], now[:, FEET]) < 0.2
        low[agents:] = True
        for wall in world["wall"][: world["num_walls"]]:
            crossed = low & _crosses(before, now, wall)
            assert not crossed.any(), (step, crossed, before[crossed], now[crossed], wall)
        before = now


def _crosses(before, now, wall):
    """Returns which middles cross the middle line of a wall, except near its ends, around which a step may turn."""
    along, across = (0, 1) if wall[2] >= wall[3] else (1, 0)
    start, end = before[:, across] - wall[across], now[:, across] - wall[across]
    share = start / np.where(start == end, 1.0, start - end)
    at = before[:, along] + (now[:, along] - before[:, along]) * share
    return (start * end < 0) & (np.abs(at - wall[along]) < wall[2 + along] - 0.3)
