"""Hand-made episodes of either engine: agents, boxes and ramps at given centers in metres."""

import importlib.util

import numpy as np
import pytest

from envpool_bridge.envs.hide_and_seek.game import RandomWalls
from envpool_bridge.envs.hide_and_seek.layout import Layout
from envpool_bridge.envs.hide_and_seek.walls import outer_walls
from envpool_bridge.envs.suites.hide_and_seek import make_hide_and_seek, make_planar

STILL = (5, 5, 5, 0, 0)
PULL, LOCK = (5, 5, 5, 1, 0), (5, 5, 5, 0, 1)
ENGINES = [
    pytest.param(name, marks=pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"needs {module}"))
    for name, module in (("mujoco", "mujoco"), ("planar", "numba"))
]
SQUARE = (0.5, 0.5, 0.5)


def layout_of(hiders, seekers, boxes=(), ramps=(), walls=(), sizes=None):
    sizes = np.array([SQUARE] * len(boxes) if sizes is None else sizes, float).reshape(-1, 3)
    agents = np.array([*hiders, *seekers], float).reshape(-1, 2) - 0.15
    corners = np.array(boxes, float).reshape(-1, 2) - sizes[:, :2] / 2
    ramps = np.array(ramps, float).reshape(-1, 2) - 0.25
    return Layout(tuple(walls), len(hiders), agents, corners, sizes, ramps)


def make_game(game, engine="mujoco"):
    return (make_planar if engine == "planar" else make_hide_and_seek)(game)


def arena(
    hiders=((3.0, 3.0),),
    seekers=((1.0, 1.0),),
    *,
    boxes=(),
    ramps=(),
    walls=None,
    sizes=None,
    game=None,
    engine="mujoco",
    **rules,
):
    """Returns a started environment without a preparation phase, with outer walls unless `walls` are given."""
    rules = {"prep_fraction": 0.0, "boxes": (0, len(boxes)), "elongated_boxes": (0, 0), "ramps": len(ramps), **rules}
    game = (game or RandomWalls)(hiders=len(hiders), seekers=len(seekers), **rules)
    walls = outer_walls(game.cells) if walls is None else walls
    env = make_game(game, engine)
    env.reset(seed=0, options={"layout": layout_of(hiders, seekers, boxes, ramps, walls, sizes)})
    return env


def act(env, steps=1, **actions):
    """Steps with these actions by agent, while the others stand still; returns the last result."""
    result = ({}, {}, {}, {}, {})
    for _ in range(steps):
        result = env.step({name: np.array(actions.get(name, STILL)) for name in env.agents})
    return result


def is_planar(env):
    return hasattr(env, "worlds")


def bodies(env):
    """Returns the bodies of a planar world, and the rows of agents and things in them."""
    from envpool_bridge.envs.hide_and_seek.planar.state import THINGS

    world = env.worlds[0]
    places = [*range(world["num_agents"]), *range(THINGS, THINGS + world["num_things"])]
    return world["body"], places


def put(env, place, center=None, turn=None):
    """Moves the agent or thing at this place to a center (x, y) or turns it, and lets it come to rest."""
    if is_planar(env):
        _put_planar(env, place, center, turn)
        return
    from envpool_bridge.envs.hide_and_seek.mujoco import mujoco

    scene = env.episode.scene
    if center is not None:
        scene.position[place, :2] = np.array(center) - scene.offsets[place, :2]
    if turn is not None:
        scene.position[place, 3] = turn
    scene.velocity[place] = 0.0
    mujoco.mj_forward(scene.model, scene.data)
    env.episode.visibility = env.episode._vision.compute()


def _put_planar(env, place, center, turn):
    from envpool_bridge.envs.hide_and_seek.planar import state

    body, places = bodies(env)
    row = body[places[place]]
    center = pose(env, place)[:2] if center is None else center
    row[state.TURN] = row[state.TURN] if turn is None else turn
    row[state.X] = center[0] - np.sin(row[state.TURN]) * row[state.OFFSET]
    row[state.Y] = center[1] + np.cos(row[state.TURN]) * row[state.OFFSET]
    row[[state.VX, state.VY, state.VZ, state.SPIN]] = 0.0
    env.worlds["over"] = state.MOVED
    env._run_kernel(-1)


def pose(env, place):
    """Returns the center and the turn of an agent or thing, [4]."""
    if not is_planar(env):
        return np.array([*env.episode.scene.centers()[place], env.episode.scene.position[place, 3]])
    from envpool_bridge.envs.hide_and_seek.planar import state

    body, places = bodies(env)
    row = body[places[place]]
    if places[place] < state.THINGS:
        return np.array([row[state.X], row[state.Y], row[state.Z] + 0.15, row[state.TURN]])
    return np.array([row[state.MIDDLE_X], row[state.MIDDLE_Y], row[state.TOP] / 2, row[state.TURN]])


def center(env, place):
    return pose(env, place)[:3]


def velocity(env, place):
    """Returns the velocity of an agent or thing along x, y, z and about z."""
    if not is_planar(env):
        return env.episode.scene.velocity[place].copy()
    from envpool_bridge.envs.hide_and_seek.planar import state

    body, places = bodies(env)
    return body[places[place], [state.VX, state.VY, state.VZ, state.SPIN]].copy()


def held(env):
    """Returns the things that agents hold, by number; -1 for none."""
    if is_planar(env):
        return env.worlds["held"][0, : env.worlds["num_agents"][0]].tolist()
    return env.episode.grips.held.tolist()


def locks(env):
    """Returns whether each thing is locked, and the agents that locked last."""
    if is_planar(env):
        count = env.worlds["num_things"][0]
        return env.worlds["locked"][0, :count].astype(bool).tolist(), env.worlds["locker"][0, :count].tolist()
    return env.episode.locks.locked.tolist(), env.episode.locks.locker.tolist()


def locked(env):
    return locks(env)[0]


def seen(env):
    """Returns which agents [A, A] and things [A, M] each agent sees, and its lidar [A, rays]."""
    if not is_planar(env):
        return tuple(env.episode.visibility)
    world = env.worlds[0]
    agents, things = world["num_agents"], world["num_things"]
    return (
        world["sees_agent"][:agents, :agents].astype(bool),
        world["sees_thing"][:agents, :things].astype(bool),
        world["lidar"][:agents, : env.game.lidar_rays].copy(),
    )


def see_all_things(env):
    """Lets every agent act in the next step as if it had seen everything."""
    if is_planar(env):
        env.worlds["sees_thing"] = 1
    else:
        visibility = env.episode.visibility
        env.episode.visibility = visibility._replace(things=np.ones_like(visibility.things))


def reseed(env, seed):
    """Seeds what a game draws during an episode."""
    if is_planar(env):
        env.worlds["random"] = seed
    else:
        env.episode.locks._rng = np.random.default_rng(seed)
