"""What agents observe, number by number."""

import numpy as np
import pytest

pytest.importorskip("mujoco")

from envpool_bridge.envs.hide_and_seek.env import HideAndSeek
from envpool_bridge.envs.hide_and_seek.game import Base, RandomWalls
from tests.support.arena import act, arena, put

SHAPES = {
    "randomwalls": (
        RandomWalls(),
        {
            "observation_self": (10,),
            "agent_qpos_qvel": (3, 10),
            "box_obs": (9, 15),
            "ramp_obs": (2, 15),
            "lidar": (30,),
        },
    ),
    "SRL": (
        RandomWalls(2, 1, max_agents=6),
        {
            "observation_self": (10,),
            "agent_qpos_qvel": (5, 10),
            "box_obs": (9, 15),
            "ramp_obs": (2, 15),
            "lidar": (30,),
        },
    ),
    "base": (
        Base(),
        {"observation_self": (10,), "agent_qpos_qvel": (3, 10), "box_obs": (2, 12), "ramp_obs": (1, 9), "lidar": (30,)},
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_observations_have_the_shapes_of_the_table(name):
    game, shapes = SHAPES[name]
    masks = {f"{key}_mask": shape[:1] for key, shape in shapes.items() if key not in ("observation_self", "lidar")}
    env = HideAndSeek(game)
    first, _ = env.reset(seed=0)
    for shown in (first, act(env)[0]):
        for agent, observation in shown.items():
            assert {key: value.shape for key, value in observation.items()} == {**shapes, **masks}
            assert env.observation_space(agent).contains(observation)
            assert {value.dtype for key, value in observation.items() if key in shapes} == {np.dtype(np.float32)}
    assert env.state_space.contains(env.state())
    assert env.action_space("hider_0").nvec.tolist() == [11, 11, 11, 2, 2]


def test_observations_omit_empty_sets():
    env = arena()
    assert set(env.observation_space("hider_0").spaces) == {
        "observation_self",
        "agent_qpos_qvel",
        "agent_qpos_qvel_mask",
        "lidar",
    }


def moved():
    """Two hiders, two seekers, three of up to five boxes, a ramp, all of them moving; in the preparation phase."""
    env = arena(
        [(3.0, 3.0), (1.0, 4.0)],
        [(3.0, 1.0), (5.0, 5.0)],
        boxes=[(3.0, 2.0), (4.5, 2.0), (2.0, 5.0)],
        sizes=[(1.65, 0.15, 0.5), (0.15, 1.65, 0.5), (0.5, 0.5, 0.5)],
        ramps=[(4.0, 4.5)],
    )
    for place, turn in enumerate((0.3, 7.0, -2.0, 0.0, 1.0, 0.0, -0.4, 2.0)):
        put(env, place, turn=turn)
    observations, *_ = act(env, 3, hider_0=(8, 2, 6, 0, 0), hider_1=(10, 5, 0, 0, 0))
    return env, observations


def test_self_observation_has_pose_team_and_progress():
    env, observations = moved()
    scene = env.episode.scene
    for place, (name, shown) in enumerate(observations.items()):
        expected = [*scene.position[place], *scene.velocity[place], float(name.startswith("hider")), 1.0]
        assert shown["observation_self"] == pytest.approx(expected, abs=1e-5)
    assert observations["hider_1"]["observation_self"][3] > 4.0  # an agent's turn is not wrapped
    assert observations["seeker_1"]["observation_self"][:3] == pytest.approx([4.85, 4.85, 0.0], abs=0.01)


def test_others_are_listed_backwards_from_the_observer():
    _, observations = moved()
    names = list(observations)
    for place, name in enumerate(names):
        for step in (1, 2, 3):
            other = observations[names[(place - step) % 4]]["observation_self"]
            assert np.array_equal(observations[name]["agent_qpos_qvel"][step - 1], other)


def test_boxes_are_observed_as_pose_full_size_and_locks():
    env, observations = moved()
    scene = env.episode.scene
    env.episode.locks.locked[:] = [True, False, True, True]
    env.episode.locks.locker[:] = [1, 1, 2, 3]
    observations = env._by_agent(env.episode.observe())
    bits = {  # by you, by your team, by anybody: of the long box by hider_1, the square one by seeker_0
        "hider_0": ([0, 1, 1], [0, 0, 1], [0, 0, 1]),
        "hider_1": ([1, 1, 1], [0, 0, 1], [0, 0, 1]),
        "seeker_0": ([0, 0, 1], [1, 1, 1], [0, 1, 1]),
        "seeker_1": ([0, 0, 1], [0, 1, 1], [1, 1, 1]),
    }
    for name, shown in observations.items():
        assert shown["box_obs"].shape == (3, 15)
        for box, size in enumerate(((1.65, 0.15, 0.5), (0.15, 1.65, 0.5), (0.5, 0.5, 0.5))):
            x, y, z, turn = scene.position[4 + box]
            lock = (bits[name][0], [0, 0, 0], bits[name][1])[box]
            expected = [x, y, z, np.cos(turn), np.sin(turn), *scene.velocity[4 + box], *size, *lock]
            assert shown["box_obs"][box] == pytest.approx(expected, abs=1e-5)
        x, y, z, turn = scene.position[7]
        expected = [x, y, z, np.cos(turn), np.sin(turn), *scene.velocity[7], 0, 0, 0, *bits[name][2]]
        assert shown["ramp_obs"][0] == pytest.approx(expected, abs=1e-5)


def test_absent_things_are_zero_and_masked():
    env = HideAndSeek(RandomWalls(1, 1, max_agents=4, outside_walls=1.0))
    for seed in range(4):
        observations, _ = env.reset(seed=seed)
        count = env.episode.scene.num_boxes
        for shown in observations.values():
            assert shown["box_obs"][:count, 9:12].all()
            assert not shown["box_obs"][count:].any()
            assert not shown["box_obs_mask"][count:].any()
            assert shown["agent_qpos_qvel"][0].any()
            assert not shown["agent_qpos_qvel"][1:].any()
            assert not shown["agent_qpos_qvel_mask"][1:].any()


def test_masks_and_lidar_equal_the_agents_visibility():
    env, observations = moved()
    visibility, names = env.episode.visibility, list(observations)
    assert 0 < visibility.things.sum() < visibility.things.size
    for place, shown in enumerate(observations.values()):
        others = [visibility.agents[place, (place - step) % 4] for step in (1, 2, 3)]
        assert shown["agent_qpos_qvel_mask"].tolist() == others
        assert shown["box_obs_mask"].tolist() == visibility.things[place, :3].tolist()
        assert shown["ramp_obs_mask"].tolist() == visibility.things[place, 3:].tolist()
        assert shown["lidar"] == pytest.approx(visibility.lidar[place], rel=1e-6)
    assert len(names) == 4


def test_the_state_holds_everything_and_nothing_hidden():
    env, observations = moved()
    env.episode.locks.locked[:] = [True, False, True, False]
    env.episode.locks.locker[:] = [1, 1, 2, 0]
    state = env.state()
    assert state[0] == 1.0
    own = np.concatenate([shown["observation_self"] for shown in observations.values()])
    assert np.array_equal(state[1:41], own)
    boxes = observations["hider_0"]["box_obs"][:, :12]
    assert np.array_equal(state[41 : 41 + 42].reshape(3, 14)[:, :12], boxes)
    assert state[41 : 41 + 42].reshape(3, 14)[:, 12:].tolist() == [[1, 0], [0, 0], [1, 1]]
    assert np.array_equal(state[83:92], observations["hider_0"]["ramp_obs"][0, :9])
    assert state[92:].tolist() == [0, 0]
    assert len(env.state()) == 94


def test_progress_reaches_1_one_step_after_preparation():
    env = arena(horizon=10, prep_fraction=0.4)
    shown = [env.episode.observe()["observation_self"][0, 9]]
    for _ in range(6):
        shown.append(act(env)[0]["hider_0"]["observation_self"][9])
    assert shown == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1, 1], abs=1e-5)
    env = arena(horizon=240, prep_fraction=0.4)
    env.episode.num_steps = 96
    assert env.episode.progress == 96 / (96 + 1e-5) < 1.0
    env.episode.num_steps = 97
    assert env.episode.progress == 1.0
