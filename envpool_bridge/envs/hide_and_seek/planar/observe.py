"""Observations of a world's agents, in the rows of the pool: the leaves of the MuJoCo game's `observations`."""

from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space

from envpool_bridge.envs.hide_and_seek.game import Game
from envpool_bridge.envs.hide_and_seek.planar.compiled import compiled
from envpool_bridge.envs.hide_and_seek.planar.contacts import AGENT_RADIUS
from envpool_bridge.envs.hide_and_seek.planar.play import progress_of
from envpool_bridge.envs.hide_and_seek.planar.state import (
    COS,
    HALF_X,
    HALF_Y,
    MIDDLE_X,
    MIDDLE_Y,
    OFFSET,
    SIN,
    SPIN,
    THINGS,
    TOP,
    TURN,
    VX,
    VY,
    VZ,
    Rules,
    X,
    Y,
    Z,
)
from envpool_bridge.envs.hide_and_seek.spaces import observation_space, state_space


class Shown(NamedTuple):
    """Observations of R rows, [R, ...] each, in the order of `LEAVES`; a leaf that the game lacks has a size of 0.

    Attributes:
        own: [R, 10] float32, the agent.
        agents: [R, S - 1, 10] float32.
        agents_mask: [R, S - 1] int8.
        boxes: [R, N, F] float32.
        boxes_mask: [R, N] int8.
        ramps: [R, M, F] float32.
        ramps_mask: [R, M] int8.
        lidar: [R, L] float32.
        state: [R, G] float32, the same for all agents of an environment.
    """

    own: np.ndarray
    agents: np.ndarray
    agents_mask: np.ndarray
    boxes: np.ndarray
    boxes_mask: np.ndarray
    ramps: np.ndarray
    ramps_mask: np.ndarray
    lidar: np.ndarray
    state: np.ndarray


LEAVES: tuple[str, ...] = (
    "observation_self",
    "agent_qpos_qvel",
    "agent_qpos_qvel_mask",
    "box_obs",
    "box_obs_mask",
    "ramp_obs",
    "ramp_obs_mask",
    "lidar",
    "state",
)
_EMPTY = {"agent_qpos_qvel": (0, 10), "box_obs": (0, 12), "ramp_obs": (0, 9)}


def make_shown(game: Game, rows: int, with_state: bool) -> Shown:
    """Returns arrays of zeros for a number of rows."""
    spaces: dict[str, Space] = dict(observation_space(game).spaces)
    if with_state:
        spaces["state"] = state_space(game)
    arrays: list[np.ndarray] = []
    for name in LEAVES:
        space = spaces.get(name)
        shape = _EMPTY.get(name, (0,)) if space is None else space.shape or ()
        arrays.append(np.zeros((rows, *shape), np.int8 if name.endswith("_mask") else np.float32))
    return Shown(*arrays)


@compiled
def _write_agent(world: Any, agent: int, progress: float, out: np.ndarray) -> None:
    """Writes the ten features of an agent."""
    body = world.body[agent]
    out[0], out[1], out[2], out[3] = body[X] - AGENT_RADIUS, body[Y] - AGENT_RADIUS, body[Z], body[TURN]
    out[4], out[5], out[6], out[7] = body[VX], body[VY], body[VZ], body[SPIN]
    out[8], out[9] = agent < world.num_hiders, progress


@compiled
def _write_pose(thing: np.ndarray, out: np.ndarray) -> None:
    """Writes the nine features of a thing's pose."""
    out[0], out[1], out[2] = thing[MIDDLE_X] - thing[HALF_X], thing[MIDDLE_Y] - thing[HALF_Y], 0.0
    out[3], out[4] = thing[COS], thing[SIN]
    # The velocity of the middle, which the mass of a ramp turns about.
    out[5] = thing[VX] + thing[SPIN] * thing[COS] * thing[OFFSET]
    out[6] = thing[VY] + thing[SPIN] * thing[SIN] * thing[OFFSET]
    out[7], out[8] = 0.0, thing[SPIN]


@compiled
def _write_locks(world: Any, agent: int, number: int, out: np.ndarray) -> None:
    """Writes whether a thing is locked by the agent itself (last), by its team, by any agent."""
    locked, locker, hiders = world.locked[number] != 0, world.locker[number], world.num_hiders
    out[0] = locked and locker == agent
    out[1] = locked and (locker >= hiders) == (agent >= hiders)
    out[2] = locked


@compiled
def _write_things(world: Any, rules: Rules, agent: int, row: int, out: Shown) -> None:
    """Writes boxes and ramps as an agent observes them."""
    sizes = 3 if rules.observes_sizes else 0
    for number in range(world.num_things):
        thing = world.body[THINGS + number]
        if number < world.num_boxes:
            features = out.boxes[row, number]
            out.boxes_mask[row, number] = world.sees_thing[agent, number]
            if sizes:
                features[9], features[10], features[11] = 2.0 * thing[HALF_X], 2.0 * thing[HALF_Y], thing[TOP]
            _write_locks(world, agent, number, features[9 + sizes :])
        else:
            place = number - world.num_boxes
            features = out.ramps[row, place]
            out.ramps_mask[row, place] = world.sees_thing[agent, number]
            if rules.locks_ramps:
                _write_locks(world, agent, number, features[9 + sizes :])
        _write_pose(thing, features)


@compiled
def _write_state(world: Any, rules: Rules, progress: float, out: np.ndarray) -> None:
    """Writes the global state: progress, agents, boxes (pose 9, size 3, 2 locks) and ramps (9, 2)."""
    out[:] = 0.0
    out[0] = progress
    for agent in range(world.num_agents):
        _write_agent(world, agent, progress, out[1 + 10 * agent : 11 + 10 * agent])
    boxes = 1 + 10 * rules.seats
    ramps = boxes + 14 * rules.most_boxes
    for number in range(world.num_things):
        thing = world.body[THINGS + number]
        if number < world.num_boxes:
            features = out[boxes + 14 * number : boxes + 14 * number + 14]
            features[9], features[10], features[11] = 2.0 * thing[HALF_X], 2.0 * thing[HALF_Y], thing[TOP]
            locks = features[12:]
        else:
            begin = ramps + 11 * (number - world.num_boxes)
            features = out[begin : begin + 11]
            locks = features[9:]
        _write_pose(thing, features)
        locks[0] = world.locked[number] != 0
        locks[1] = world.locked[number] != 0 and world.locker[number] >= world.num_hiders


@compiled
def _blank(row: int, out: Shown) -> None:
    out.own[row] = 0.0
    out.agents[row] = 0.0
    out.agents_mask[row] = 0
    out.boxes[row] = 0.0
    out.boxes_mask[row] = 0
    out.ramps[row] = 0.0
    out.ramps_mask[row] = 0
    out.lidar[row] = 0.0
    if out.state.shape[1]:
        out.state[row] = 0.0


@compiled
def row_of(world: Any, rules: Rules, agent: int) -> int:
    """Returns the row of an agent within its environment: absent hiders leave rows free before the seekers."""
    return agent if agent < world.num_hiders else rules.hiders + agent - world.num_hiders


@compiled
def observe(world: Any, rules: Rules, first_row: int, out: Shown) -> None:
    """Writes the observations of all agents into the rows of an environment; rows of absent agents are zeros."""
    progress = progress_of(world.num_steps, rules.prep_steps)
    agents = world.num_agents
    for row in range(first_row, first_row + rules.hiders + rules.seekers):
        _blank(row, out)
    for agent in range(agents):
        row = first_row + row_of(world, rules, agent)
        _write_agent(world, agent, progress, out.own[row])
        for place in range(agents - 1):  # others backwards from the agent
            other = (agent - place - 1) % agents
            _write_agent(world, other, progress, out.agents[row, place])
            out.agents_mask[row, place] = world.sees_agent[agent, other]
        _write_things(world, rules, agent, row, out)
        for ray in range(rules.lidar_rays):
            out.lidar[row, ray] = world.lidar[agent, ray]
        if out.state.shape[1]:
            _write_state(world, rules, progress, out.state[row])
