"""The numbers of the physics, read from the compiled model and measured by driving it."""

import numpy as np
import pytest

mujoco = pytest.importorskip("mujoco")

from envpool_bridge.envs.hide_and_seek import scene as scene_module
from envpool_bridge.envs.hide_and_seek.game import Base, RandomWalls
from envpool_bridge.envs.hide_and_seek.scene import SUBSTEPS, make_scene
from envpool_bridge.envs.hide_and_seek.walls import Wall, outer_walls
from tests.support.arena import act, arena, center, layout_of

LONG = [(1.65, 0.15, 0.5), (0.15, 1.65, 0.5)]


@pytest.fixture(scope="module")
def scene():
    walls = [*outer_walls(30), Wall((15, 0), (15, 12))]
    layout = layout_of(
        [(1, 1), (2, 1)], [(1, 2)], [(4, 4), (4, 2), (5, 4)], [(2, 4), (2, 5)], walls, [*LONG, (0.5,) * 3]
    )
    return make_scene(layout, 6.0, 1.0)


def test_scene_step_has_15_substeps_of_5_ms(scene):
    option = scene.model.opt
    assert (option.timestep, SUBSTEPS, option.iterations) == (0.005, 15, 100)
    assert option.gravity.tolist() == [0.0, 0.0, -50.0]
    assert option.integrator == mujoco.mjtIntegrator.mjINT_EULER
    assert option.solver == mujoco.mjtSolver.mjSOL_NEWTON
    assert option.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL
    assert option.jacobian == mujoco.mjtJacobian.mjJAC_DENSE  # a sparse one makes agents fly: see scene.py


def test_everything_has_four_joints_and_every_agent_three_motors(scene):
    model = scene.model
    assert (model.nq, model.nv, model.nu) == (4 * 8, 4 * 8, 3 * 3)
    slide, hinge = mujoco.mjtJoint.mjJNT_SLIDE, mujoco.mjtJoint.mjJNT_HINGE
    assert model.jnt_type.reshape(-1, 4).tolist() == [[slide, slide, slide, hinge]] * 8
    assert model.jnt_axis.reshape(-1, 4, 3).tolist() == [[[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]] * 8
    damping = [[10.0, 10.0, 1.0, 10.0]] * 3 + [[0.01] * 4] * 3 + [[0.1] * 4] * 2
    assert model.dof_damping.reshape(-1, 4).tolist() == damping
    assert not model.jnt_limited.any()
    assert model.actuator_gear[:, 0].tolist() == [100.0] * 9
    assert model.actuator_ctrlrange.tolist() == [[-0.9, 0.9]] * 9
    assert model.actuator_trnid[:, 0].reshape(-1, 3).tolist() == [[0, 1, 3], [4, 5, 7], [8, 9, 11]]


def test_scene_has_the_masses_and_sizes_of_the_original(scene):
    model = scene.model
    assert model.body_mass[scene.bodies] == pytest.approx([1.0] * 8)
    agent = model.body("agent1")
    assert agent.inertia == pytest.approx([0.009] * 3)
    first = agent.geomadr[0]
    assert model.geom_size[first : first + 3, 0].tolist() == [0.15, 0.05, 0.05]
    assert model.geom_pos[first + 1 : first + 3].tolist() == [[-0.13, -0.075, -0.05], [0.13, -0.075, -0.05]]
    assert model.geom_friction[scene.geoms, 0].tolist() == [0.01] * 3 + [0.2] * 3 + [0.01] * 2
    assert model.geom("floor").friction[0] == 0.2
    assert model.geom("floor").pos.tolist() == [3.0, 3.0, 0.0]
    assert 2 * model.geom_size[scene.geoms[3:6]] == pytest.approx(np.array([*LONG, (0.5, 0.5, 0.5)]))
    assert (model.geom_condim[[*scene.geoms, 0]] == 3).all()
    assert model.geom_contype.all()
    assert model.geom_conaffinity.all()


def test_the_ramp_is_a_prism_with_a_slope_of_45_degrees(scene):
    model, data = scene.model, scene.data
    mesh = model.mesh("ramp")
    middle = data.geom("ramp0").xpos - data.body("ramp0").xpos
    assert middle == pytest.approx([0.0, -1 / 12, -1 / 12])
    vertices = model.mesh_vert[mesh.vertadr[0] : mesh.vertadr[0] + 6] @ data.geom("ramp0").xmat.reshape(3, 3).T + middle
    expected = {(x, *yz) for x in (-0.25, 0.25) for yz in ((-0.25, -0.25), (-0.25, 0.25), (0.25, -0.25))}
    assert {tuple(np.round(vertex, 6)) for vertex in vertices} == expected


def test_a_door_is_70_centimetres_wide():
    env = arena(walls=(Wall((0, 15), (13, 15)), Wall((16, 15), (29, 15))))
    model = env.episode.scene.model
    left = model.geom("wall0").size[0] + model.body("wall0").pos[0]
    right = model.body("wall1").pos[0] - model.geom("wall1").size[0]
    assert right - left == pytest.approx(0.7)


def test_walls_are_10_cm_thick_and_reach_from_face_to_face(scene):
    model = scene.model
    # Center, half sizes: inner 0.5 m and outer 4 m tall, the free floor 0.15 to 5.85.
    expected = {
        "wall0": ([0.1, 3.0, 2.0], [0.05, 2.85, 2.0]),
        "wall1": ([3.0, 0.1, 2.0], [2.85, 0.05, 2.0]),
        "wall2": ([5.9, 3.0, 2.0], [0.05, 2.85, 2.0]),
        "wall3": ([3.0, 5.9, 2.0], [2.85, 0.05, 2.0]),
        "wall4": ([3.1, 1.3, 0.25], [0.05, 1.15, 0.25]),
    }
    for name, (position, size) in expected.items():
        assert model.body(name).pos == pytest.approx(position)
        assert model.geom(name).size == pytest.approx(size)
        assert model.geom(name).group == 1
        assert model.geom(name).friction[0] == 1.0
        assert model.geom(name).rgba == pytest.approx([0, 1, 0, 0.1 if position[2] == 2.0 else 1])


def test_grips_are_welds_that_start_open(scene):
    model = scene.model
    assert model.eq_type.tolist() == [mujoco.mjtEq.mjEQ_WELD] * 3
    assert model.eq_obj1id.tolist() == scene.bodies[:3].tolist()
    assert not scene.data.eq_active.any()


def test_walls_are_slippery_in_the_quadrant_game_alone():
    walls = outer_walls(30)
    for game, friction in ((Base, 0.01), (RandomWalls, 1.0)):
        env = arena(walls=walls, game=game)
        assert env.episode.scene.model.geom("wall0").friction[0] == friction


def test_forces_act_along_world_axes_up_to_8_m_s():
    env = arena([(1.0, 3.0)], [(5.0, 5.0)], walls=())
    env.episode.scene.position[0, 3] = 1.0  # wherever it looks
    act(env, 12, hider_0=(10, 5, 5, 0, 0))
    velocity = env.episode.scene.velocity[0]
    assert velocity[0] == pytest.approx(8.0, abs=0.1)
    assert np.abs(velocity[[1, 3]]).max() < 0.05
    act(env, 12, hider_0=(5, 0, 5, 0, 0))
    assert env.episode.scene.velocity[0, 1] == pytest.approx(-8.0, abs=0.1)
    act(env, 12, hider_0=(5, 5, 10, 0, 0))
    assert env.episode.scene.velocity[0, 3] == pytest.approx(9.0, abs=0.1)


@pytest.mark.parametrize("bucket", range(11))
def test_force_buckets_are_evenly_spaced_around_zero(bucket):
    env = arena(walls=())
    act(env, hider_0=(bucket, 10 - bucket, bucket, 0, 0))
    control = env.episode.scene.motors[0]
    assert control == pytest.approx([0.18 * (bucket - 5), -0.18 * (bucket - 5), 0.18 * (bucket - 5)])
    force = env.episode.scene.data.qfrc_actuator[[0, 1, 3]]
    assert force == pytest.approx([18.0 * (bucket - 5), -18.0 * (bucket - 5), 18.0 * (bucket - 5)])


def test_things_at_rest_stay_where_they_are():
    env = arena(boxes=[(4.0, 4.0)], ramps=[(2.0, 4.0)])
    began = env.episode.scene.position.copy()
    act(env, 40)
    assert np.abs(env.episode.scene.position - began).max() < 2e-3


def test_objects_stand_on_the_floor_beyond_its_edge():
    env = arena([(3.0, 3.0)], boxes=[(9.0, 9.0)], walls=())
    act(env, 10)
    assert center(env, 2)[2] == pytest.approx(0.25, abs=2e-3)


def test_physics_that_blow_up_end_the_episode_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where MuJoCo writes its log
    env = arena(boxes=[(4.0, 4.0)])
    act(env)
    env.episode.scene.velocity[2] = np.nan
    observations, rewards, terminated, truncated, infos = act(env)
    assert env.agents == []
    assert set(truncated.values()) == {True}
    assert set(terminated.values()) == {False}
    assert set(rewards.values()) == {0.0}
    assert infos["hider_0"]["discard_episode"] == 1.0
    assert all(np.isfinite(value).all() for shown in observations.values() for value in shown.values())


def test_sleep_saves_computation_and_changes_nothing_else(monkeypatch):
    def pushed():
        env = arena([(3.0, 4.45)], boxes=[(3.0, 4.0), (3.0, 2.5), (5.0, 1.0)], ramps=[(4.5, 4.5)])
        act(env, 25)
        contacts = env.episode.scene.data.ncon
        act(env, 6, hider_0=(5, 0, 5, 0, 0))
        return contacts, env.episode.scene.position.copy()

    if not scene_module._SLEEP:
        pytest.skip("this MuJoCo has no sleep")
    few, asleep = pushed()
    monkeypatch.setattr(scene_module, "_SLEEP", 0)
    many, awake = pushed()
    assert few < 8 < 16 <= many
    assert asleep[3, 1] < 2.0  # the first box has come to the second and moved it
    assert np.abs(asleep - awake).max() < 5e-3
