"""The planar engine: rows that are stepped together, determinism, and soundness over many episodes."""

import json
import re
import runpy

import numpy as np
import pytest

pytest.importorskip("numba")

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.hide_and_seek.planar import state
from envpool_bridge.envs.hide_and_seek.planar.compiled import SOURCES
from envpool_bridge.envs.hide_and_seek.planar.rows import PlanarRows, PlanarSource
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.protocol import EpisodeReset, GymnasiumReset, first_rows, step_rows
from envpool_bridge.envs.suites.hide_and_seek import GAMES, make_planar
from envpool_bridge.errors import UserError, WorkerError
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from tests.support.arena import arena

SIZES = (11, 11, 11, 2, 2)
FIELDS = ("max_box_move", "seen_fraction", "hider_return")


def planar_source(env_id="base", stagger=0, **kwargs):
    kwargs = json.dumps({"engine": "planar", "hiders": 1, "seekers": 2, "horizon": 30, **kwargs})
    source = EnvConfig(env_id, "hide_and_seek", kwargs, info_fields=FIELDS, stagger=stagger).source()
    assert isinstance(source, PlanarSource)
    return source


def slot_of(source, num_rows, steps):
    slot = allocate_slots(make_layout(source.spec(), PoolShape(1, 1, 1, num_rows, steps, 1), {}))[0]
    step_rows(slot, slice(0, steps)).prepare()
    return slot


def begun(num_rows):
    return EpisodeReset((0,) * num_rows, (None,) * num_rows)


def played(source, row_ids, actions, request=None, start=0, rows=None):
    """Returns what rows write when they play actions, [T, R, 5], from step `start` on."""
    rows = rows or source.make_rows(row_ids, 5, False)
    slot = slot_of(source, len(row_ids), len(actions))
    rows.reset(request or begun(len(row_ids)), first_rows(slot))
    slot.action[:] = actions
    for t in range(start, len(actions)):
        rows.step(slot.action[t], step_rows(slot, t))
    rows.verify({name: values[1:] for name, values in slot.observation.items()}, slot.reward[:])
    return slot


def random_actions(steps, num_rows, seed=0):
    return np.random.default_rng(seed).integers(0, SIZES, (steps, num_rows, 5))


def written(slot, rows=slice(None), steps=slice(None)):
    """Returns all arrays of a slot but the actions, by name."""
    flags = {name: getattr(slot, name) for name in ("reward", "valid", "is_first", "terminated", "truncated")}
    return {name: values[steps, rows] for name, values in {**flags, **slot.observation, **slot.infos}.items()}


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(got[name], values, err_msg=name)


@pytest.mark.parametrize("env_id", ["base", "randomwalls"])
def test_stepping_together_writes_what_one_by_one_writes(env_id):
    source = planar_source(env_id, stagger=17, global_state=True, random_team_sizes=True)
    assert [agent.name for agent in source.spec().agents] == ["hider_0", "seeker_0", "seeker_1"]
    actions = random_actions(100, 12)
    together = source.make_rows(range(12), 5, False)
    assert isinstance(together, PlanarRows)
    one_by_one = ParallelSource.make_rows(source, range(12), 5, False)
    slot = played(source, range(12), actions, rows=together)
    assert_same(written(slot), written(played(source, range(12), actions, rows=one_by_one)))
    assert not slot.valid.all(axis=0).any()  # episodes ended, and agents were absent
    assert np.isfinite(slot.infos["seen_fraction"]).any()


@pytest.mark.parametrize("env_id", ["base", "randomwalls"])
def test_an_episode_follows_from_its_seed_in_any_rows(env_id):
    source, actions = planar_source(env_id), random_actions(70, 12)
    all_rows = written(played(source, range(12), actions))
    for row_ids in (range(3, 6), range(6, 12)):
        own = slice(row_ids.start, row_ids.stop)
        assert_same(
            written(played(source, row_ids, actions[:, own])), {name: v[:, own] for name, v in all_rows.items()}
        )


def test_a_replayed_episode_continues_to_the_bit():
    source, actions = planar_source(), random_actions(60, 6)
    whole = played(source, range(6), actions)
    steps, resumed_at = 31 + 17, slice(31, 31 + 17)  # 17 steps into the second episode
    saved = tuple(actions[resumed_at, row] for row in range(6))
    resumed = played(source, range(6), actions, EpisodeReset((1,) * 6, saved), start=steps)
    after = slice(steps + 1, None)
    assert_same(written(resumed, steps=after), written(whole, steps=after))
    for name, values in resumed.observation.items():
        np.testing.assert_array_equal(values[0], whole.observation[name][steps], err_msg=name)
    assert not resumed.is_first[0].any()


def test_gymnasium_seeds_repeat_an_episode():
    source = planar_source()
    first = []
    for seed in (3, 3, 4, None):
        rows = source.make_rows(range(3), None, False)
        slot = slot_of(source, 3, 1)
        rows.reset(GymnasiumReset((seed,) * 3), first_rows(slot))
        first.append(slot.observation["lidar"][0].copy())
    assert np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], first[2])
    assert not np.array_equal(first[0], first[3])


def test_actions_outside_the_space_are_rejected_by_row():
    source = planar_source()
    actions = random_actions(3, 6)
    actions[2, 4, 3] = 2
    with pytest.raises(WorkerError, match=r"base, row 4, step 3: expected an action in MultiDiscrete\(\[11, 11, 11, 2"):
        played(source, range(6), actions)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"engine": "mujco"}, "option engine must be one of 'mujoco', 'planar', got 'mujco'"),
        ({"lidar_rays": 65}, "room for 24 boxes and ramps, 64 lidar rays and 6 agents, got 3, 65 and 3: use fewer"),
        ({"boxes": [25, 25]}, "got 26, 30 and 3: use fewer, or engine 'mujoco'"),
    ],
)
def test_games_that_the_kernel_cannot_hold_are_rejected(kwargs, message):
    with pytest.raises(UserError, match=message):
        planar_source(**kwargs).spec()


def test_splitting_an_environment_is_rejected():
    with pytest.raises(UserError, match="expected rows of whole environments, got 3 from row 1"):
        planar_source().make_rows(range(1, 4), 5, False)


@pytest.mark.parametrize(
    ("env_id", "team", "episodes"),
    [
        ("base", 2, 200),
        ("randomwalls", 2, 200),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("base", 2, 6000), ("randomwalls", 3, 4000))),
    ],
)
def test_random_episodes_stay_sound(env_id, team, episodes):
    """Forces change seldom, so that agents come to walls and push things into corners."""
    worlds = 50
    source = planar_source(env_id, hiders=team, seekers=team, horizon=80)
    rows = source.make_rows(range(2 * team * worlds), 1, False)
    assert isinstance(rows, PlanarRows)
    slot = slot_of(source, 2 * team * worlds, 1)
    rows.reset(begun(2 * team * worlds), first_rows(slot))
    rng = np.random.default_rng(1)
    deep = steps = 0
    for t in range(81 * episodes // worlds):
        if t % 8 == 0:
            slot.action[0] = rng.integers(0, SIZES, slot.action[0].shape)
        rows.step(slot.action[0], step_rows(slot, 0))
        assert np.isfinite(rows._worlds["body"]).all()
        assert not rows._worlds["discarded"].any()
        depth = penetrations(rows._worlds)
        deep, steps = deep + (depth > 0.1).sum(), steps + worlds
    assert deep / steps < 0.001


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["base", "randomwalls"])
def test_means_of_random_episodes_are_those_of_mujoco(env_id):
    """Short pushes move things less, which docs/lab/hide_and_seek.md explains."""
    pytest.importorskip("mujoco")
    engines = runpy.run_path("docs/lab/hide_and_seek_engines.py")
    means = engines["compare"](GAMES[env_id](horizon=80), 150, 1)
    assert means["chase_fraction"][0] > 0.1
    for field, (mujoco, planar, error) in means.items():
        share = 0.3 if "move" in field else 0.15
        assert abs(mujoco - planar) <= max(3 * error, share * abs(mujoco)), field


def penetrations(worlds):
    """Returns by how much the worst agent of each world is in a wall or thing, or the worst thing in a wall, in metres.

    A solid is where all distances to its planes are negative; next to its edges that overestimates depths.
    """
    body, wall = worlds["body"], worlds["wall"][:, None]
    agents, things = body[:, : state.MAX_AGENTS], body[:, state.THINGS : state.FIXED]
    real_agents = np.arange(state.MAX_AGENTS) < worlds["num_agents"][:, None]
    real_things = np.arange(state.MAX_THINGS) < worlds["num_things"][:, None]
    real_walls = (np.arange(state.MAX_WALLS) < worlds["num_walls"][:, None])[:, None]
    center = agents[..., None, [state.X, state.Y]]
    height = agents[..., None, state.Z] + 0.15

    def deepest(away, half, top, slope, real):
        planes = [*np.moveaxis(np.abs(away) - half, -1, 0), height - top, slope]
        return np.where(real_agents[..., None] & real, 0.15 - np.max(planes, axis=0), 0.0).max(axis=(1, 2))

    wall_half, wall_top = wall[..., [state.WALL_HALF_X, state.WALL_HALF_Y]], wall[..., state.WALL_TOP]
    away = center - wall[..., [state.WALL_X, state.WALL_Y]]
    in_walls = deepest(away, wall_half, wall_top, np.full(away.shape[:-1], -np.inf), real_walls)

    away = turned(center - things[:, None][..., [state.MIDDLE_X, state.MIDDLE_Y]], things[:, None])
    half, top = things[:, None][..., [state.HALF_X, state.HALF_Y]], things[:, None][..., state.TOP]
    slope = (away[..., 1] + height - half[..., 1]) * np.sqrt(0.5)
    is_ramp = np.arange(state.MAX_THINGS) >= worlds["num_boxes"][:, None, None]
    in_things = deepest(away, half, top, np.where(is_ramp, slope, -np.inf), real_things[:, None])

    thing = things[:, :, None]
    away = thing[..., [state.MIDDLE_X, state.MIDDLE_Y]] - wall[..., [state.WALL_X, state.WALL_Y]]
    half = thing[..., [state.HALF_X, state.HALF_Y]]
    cos, sin = np.abs(thing[..., state.COS]), np.abs(thing[..., state.SIN])

    def reach(half):
        return np.stack([half[..., 0] * cos + half[..., 1] * sin, half[..., 0] * sin + half[..., 1] * cos], axis=-1)

    of_walls = np.abs(away) - wall_half - reach(half)
    of_things = np.abs(turned(away, thing)) - half - reach(wall_half)
    overlap = -np.maximum(of_walls, of_things).max(axis=-1)
    things_in_walls = np.where(real_things[..., None] & real_walls, overlap, 0.0).max(axis=(1, 2))
    return np.maximum(np.maximum(in_walls, in_things), things_in_walls)


def turned(away, thing):
    """Returns vectors in the frame of a thing."""
    cos, sin = thing[..., state.COS], thing[..., state.SIN]
    return np.stack([cos * away[..., 0] + sin * away[..., 1], cos * away[..., 1] - sin * away[..., 0]], axis=-1)


def test_the_kernels_version_covers_all_files_it_imports():
    names = {".".join(path.relative_to(SOURCES[0].parent).with_suffix("").parts) for path in SOURCES}
    for path in SOURCES:
        if path.parent.name == "planar":
            imported = re.findall(r"from envpool_bridge\.envs\.hide_and_seek\.([\w.]+) import", path.read_text())
            assert set(imported) <= {*names, "planar"}, path


def test_pictures_show_agents_things_walls_and_locks_from_above():
    env = arena(((1.0, 1.0),), ((5.0, 1.0),), boxes=((1.0, 5.0),), ramps=((5.0, 5.0),), engine="planar")
    picture = env.render()
    assert (picture.shape, picture.dtype) == ((480, 480, 3), np.uint8)
    scale = 480 / 6.8

    def color(x, y):
        return picture[int(480 - (y + 0.4) * scale), int((x + 0.4) * scale)].astype(int)

    assert color(0.92, 1.05)[2] > color(0.92, 1.05)[0] + 100  # blue
    assert color(4.92, 1.05)[0] > color(4.92, 1.05)[2] + 50  # red, pale before preparation ends
    assert np.abs(color(1.0, 5.0) - (200, 165, 120)).max() < 3
    assert color(5.0, 4.85)[2] + 30 < color(5.0, 5.15)[2]  # the ramp is high towards -y
    assert np.abs(color(0.1, 3.0) - (110, 110, 110)).max() < 3
    env.worlds["locked"][0, 0] = 1
    for locker, leading in ((0, 2), (1, 0)):
        env.worlds["locker"][0, 0] = locker
        picture = env.render()
        assert color(0.79, 5.0).argmax() == leading  # the edge has the team's color
        assert np.abs(color(1.0, 5.0) - (200, 165, 120)).max() < 3
    fresh = make_planar(env.game, "rgb_array")
    with pytest.raises(RuntimeError, match="call reset"):
        fresh.render()
