"""Who sees what, and lidar, against single rays by loops."""

import math

import numpy as np
import pytest

mujoco = pytest.importorskip("mujoco")

from envpool_bridge.envs.hide_and_seek.env import HideAndSeek
from envpool_bridge.envs.hide_and_seek.game import Base, RandomWalls
from envpool_bridge.envs.hide_and_seek.walls import Wall
from tests.support.arena import act, arena, put


def seen_by_loops(scene):
    """[A, A + M]: the specification's rule with one `mj_ray` a pair."""
    model, data, count = scene.model, scene.data, len(scene.bodies)
    seen = np.zeros((scene.num_agents, count), bool)
    for agent in range(scene.num_agents):
        eye, heading = data.geom_xpos[scene.geoms[agent]], scene.position[agent, 3] - math.pi / 2
        for target in range(count):
            if target == agent:
                seen[agent, target] = True
                continue
            away = (data.xpos[scene.bodies[target]] - eye)[:2]
            cosine = (away @ [math.cos(heading), math.sin(heading)]) / np.linalg.norm(away)
            if math.acos(np.clip(cosine, -1, 1)) > 3 / 8 * math.pi:
                continue
            hit = np.zeros(1, np.int32)
            ray = data.geom_xpos[scene.geoms[target]] - eye
            mujoco.mj_ray(model, data, eye, ray, None, 1, int(scene.bodies[agent]), hit)
            seen[agent, target] = model.geom_bodyid[hit[0]] == scene.bodies[target]
    return seen


@pytest.mark.parametrize("seed", range(4))
def test_sight_and_lidar_are_those_of_single_rays(seed):
    env = HideAndSeek((RandomWalls, Base)[seed % 2](3, 3, prep_fraction=0.0))
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    for _ in range(5):
        act(env, 4, **{name: (*rng.integers(0, 11, 3), 0, 0) for name in env.agents})
        scene, visibility = env.episode.scene, env.episode.visibility
        assert np.array_equal(np.concatenate([visibility.agents, visibility.things], axis=1), seen_by_loops(scene))
        for agent in range(6):
            for ray in range(30):
                angle = 2 * math.pi * ray / 30
                direction = np.array([math.cos(angle), math.sin(angle), 0.0])
                eye = scene.data.geom_xpos[scene.geoms[agent]]
                args = scene.model, scene.data, eye, direction, None, 1, int(scene.bodies[agent]), np.zeros(1, np.int32)
                distance = mujoco.mj_ray(*args)
                assert visibility.lidar[agent, ray] == pytest.approx(6.0 if distance < 0 else distance)


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize(("degrees", "seen"), [(0.0, True), (67.0, True), (68.0, False), (180.0, False)])
def test_vision_cone_is_67_5_degrees_to_either_side(side, degrees, seen):
    angle = math.radians(side * degrees) - math.pi / 2  # its front at turn 0 is -y
    env = arena([(3.0, 3.0)], [(3.0 + 1.5 * math.cos(angle), 3.0 + 1.5 * math.sin(angle))])
    assert env.episode.visibility.agents.tolist() == [[True, seen], [env.episode.visibility.agents[1, 0], True]]
    put(env, 0, turn=0.7)
    angle += 0.7
    put(env, 1, (3.0 + 1.5 * math.cos(angle), 3.0 + 1.5 * math.sin(angle)))
    assert env.episode.visibility.agents[0, 1] == seen


def test_walls_block_sight_and_rays():
    wall = Wall((10, 12), (20, 12))  # y 2.45 to 2.55
    for walls, seen, ahead in (((), True, 0.85), ((wall,), False, 0.45)):
        env = arena([(3.0, 3.0)], [(3.0, 2.0)], walls=walls)
        assert env.episode.visibility.agents[0, 1] == seen
        # No ray goes to -y exactly: 22 and 23 are 6 degrees to either side of it.
        down = env.episode.visibility.lidar[0, 22] * math.cos(math.radians(6.0))
        assert down == pytest.approx(ahead, abs=0.04)


def test_vision_is_blocked_by_things():
    env = arena([(3.0, 4.5)], [(3.0, 1.0)], boxes=[(3.0, 3.0), (3.0, 2.0)], ramps=[(4.0, 2.5)])
    assert not env.episode.visibility.agents[0, 1]
    assert env.episode.visibility.things[0].tolist() == [True, False, True]
    put(env, 2, (4.5, 4.5))
    assert env.episode.visibility.things[0].tolist() == [False, True, True]  # beside it, behind it: 90 degrees


def test_lidar_starts_at_plus_x_and_ignores_the_heading():
    env = arena([(1.0, 2.0)], [(5.5, 5.5)])
    for turn in (0.0, 1.3):
        put(env, 0, turn=turn)
        lidar = env.episode.visibility.lidar[0]
        assert lidar.shape == (30,)
        assert lidar[0] == pytest.approx(5.85 - 1.0)
        assert lidar[15] == pytest.approx(1.0 - 0.15)
        for ray in (5, 7):  # 60 and 84 degrees, to the wall at y = 5.85
            assert lidar[ray] == pytest.approx((5.85 - 2.0) / math.sin(2 * math.pi * ray / 30))
        assert lidar[25] == pytest.approx((2.0 - 0.15) / math.sin(math.radians(60)))


def test_lidar_reads_6_without_a_hit_and_is_not_clipped():
    env = arena([(0.5, 0.5)], [(5.5, 0.5)])
    assert env.episode.visibility.lidar[0, 4] == pytest.approx((5.85 - 0.5) / math.sin(math.radians(48)))  # 7.2
    env = arena([(0.5, 0.5)], [(5.5, 0.5)], walls=())
    assert env.episode.visibility.lidar[0, 4] == 6.0
    assert env.episode.visibility.lidar[0, 0] == pytest.approx(5.0 - 0.15)  # the other agent


def test_lidar_sees_agents_boxes_and_ramps():
    env = arena([(3.0, 3.0)], [(2.0, 3.0)], boxes=[(4.5, 3.0)], ramps=[])
    lidar = env.episode.visibility.lidar[0]
    assert lidar[0] == pytest.approx(1.25)
    assert lidar[15] == pytest.approx(0.85)
    env = arena([(3.0, 3.0)], [(2.0, 1.0)], ramps=[(4.5, 3.0)])
    assert env.episode.visibility.lidar[0, 0] == pytest.approx(1.25)


def test_an_agent_always_sees_itself():
    env = arena([(3.0, 3.0), (3.0, 4.0)], [(1.0, 1.0)])
    assert env.episode.visibility.agents.diagonal().all()
