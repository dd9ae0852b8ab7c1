"""Hand-made episodes: agents, boxes and ramps at given centers in metres."""

import mujoco
import numpy as np

from envpool_bridge.envs.hide_and_seek.env import HideAndSeek
from envpool_bridge.envs.hide_and_seek.game import RandomWalls
from envpool_bridge.envs.hide_and_seek.layout import Layout
from envpool_bridge.envs.hide_and_seek.walls import outer_walls

STILL = (5, 5, 5, 0, 0)
PULL, LOCK = (5, 5, 5, 1, 0), (5, 5, 5, 0, 1)
SQUARE = (0.5, 0.5, 0.5)


def layout_of(hiders, seekers, boxes=(), ramps=(), walls=(), sizes=None):
    sizes = np.array([SQUARE] * len(boxes) if sizes is None else sizes, float).reshape(-1, 3)
    agents = np.array([*hiders, *seekers], float).reshape(-1, 2) - 0.15
    corners = np.array(boxes, float).reshape(-1, 2) - sizes[:, :2] / 2
    ramps = np.array(ramps, float).reshape(-1, 2) - 0.25
    return Layout(tuple(walls), len(hiders), agents, corners, sizes, ramps)


def arena(
    hiders=((3.0, 3.0),), seekers=((1.0, 1.0),), *, boxes=(), ramps=(), walls=None, sizes=None, game=None, **rules
):
    """Returns a started environment without a preparation phase, with outer walls unless `walls` are given."""
    rules = {"prep_fraction": 0.0, "boxes": (0, len(boxes)), "elongated_boxes": (0, 0), "ramps": len(ramps), **rules}
    game = (game or RandomWalls)(hiders=len(hiders), seekers=len(seekers), **rules)
    walls = outer_walls(game.cells) if walls is None else walls
    env = HideAndSeek(game)
    env.reset(seed=0, options={"layout": layout_of(hiders, seekers, boxes, ramps, walls, sizes)})
    return env


def act(env, steps=1, **actions):
    """Steps with these actions by agent, while the others stand still; returns the last result."""
    result = None
    for _ in range(steps):
        result = env.step({name: np.array(actions.get(name, STILL)) for name in env.agents})
    return result


def put(env, place, center=None, turn=None):
    """Moves the agent or thing at this place to a center (x, y) or turns it, and lets it come to rest."""
    scene = env.episode.scene
    if center is not None:
        scene.position[place, :2] = np.array(center) - scene.offsets[place, :2]
    if turn is not None:
        scene.position[place, 3] = turn
    scene.velocity[place] = 0.0
    mujoco.mj_forward(scene.model, scene.data)
    env.episode.visibility = env.episode._vision.compute()


def center(env, place):
    return env.episode.scene.centers()[place].copy()
