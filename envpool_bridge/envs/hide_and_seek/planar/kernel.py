"""The entry point of the kernel: one call steps, or resets, all worlds of a worker."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from envpool_bridge.envs.hide_and_seek.game import Game
from envpool_bridge.envs.hide_and_seek.phases import Ground, make_ground
from envpool_bridge.envs.hide_and_seek.planar.compiled import VERSION, cached, compiled
from envpool_bridge.envs.hide_and_seek.planar.observe import Shown, observe, row_of
from envpool_bridge.envs.hide_and_seek.planar.physics import place_middle
from envpool_bridge.envs.hide_and_seek.planar.play import play
from envpool_bridge.envs.hide_and_seek.planar.rooms import Plan, make_plan
from envpool_bridge.envs.hide_and_seek.planar.sight import lidar_directions, see
from envpool_bridge.envs.hide_and_seek.planar.solver import Contacts, make_contacts
from envpool_bridge.envs.hide_and_seek.planar.start import begin, place
from envpool_bridge.envs.hide_and_seek.planar.state import (
    MAX_AGENTS,
    OVER,
    PLACED,
    PLAYING,
    THINGS,
    WORLD,
    Rules,
    rules_of,
)
from envpool_bridge.envs.hide_and_seek.spaces import ACTION_SIZES

NO_LAYOUT = -1
NEVER = 1 << 62  # steps


class Kit(NamedTuple):
    """Constants and scratch of the kernel, of which a process needs one for each game.

    Attributes:
        rules: Rules of the game.
        rays: [2, L] directions of the lidar.
        plan: Scratch for layouts.
        contacts: Scratch for contacts.
        arms: [A, 5] scratch for grips.
        control: [A, 3] scratch for forces and torques.
        actions: [A, 5] scratch for the actions of a world.
        ground: Scratch for the floor.
    """

    rules: Rules
    rays: np.ndarray
    plan: Plan
    contacts: Contacts
    arms: np.ndarray
    control: np.ndarray
    actions: np.ndarray
    ground: Ground


class Ends(NamedTuple):
    """Results of a step besides observations.

    Attributes:
        reward: [R] float32.
        valid: [R] bool, False for absent agents and in a reset.
        is_first: [R] bool.
        truncated: [R] bool.
        finished: [N] bool, worlds whose `stats` are those of an episode that ended in this step.
    """

    reward: np.ndarray
    valid: np.ndarray
    is_first: np.ndarray
    truncated: np.ndarray
    finished: np.ndarray


def make_kit(game: Game) -> Kit:
    """Returns the kit of a game. Raises UserError if it is too large."""
    return Kit(
        rules_of(game),
        lidar_directions(game.lidar_rays),
        make_plan(),
        make_contacts(),
        np.zeros((MAX_AGENTS, 5)),
        np.zeros((MAX_AGENTS, 3)),
        np.zeros((MAX_AGENTS, 5), np.int64),
        make_ground(game),
    )


def make_ends(worlds: int, rows: int) -> Ends:
    """Returns arrays for a number of worlds and rows."""
    valid, is_first, truncated = (np.zeros(rows, bool) for _ in range(3))
    return Ends(np.zeros(rows, np.float32), valid, is_first, truncated, np.zeros(worlds, bool))


def make_worlds(count: int) -> np.ndarray:
    """Returns worlds, [N] records, that the next step resets; their random numbers differ in every process."""
    worlds = np.zeros(count, WORLD)
    worlds["over"] = OVER
    worlds["random"][:, 0] = np.random.SeedSequence().generate_state(count, np.uint64)
    return worlds


@compiled
def _begin(world: Any, kit: Kit, seed: int) -> bool:
    """Starts an episode, or shows bodies that were moved by hand; returns False if its things do not fit."""
    if seed >= 0:
        world.random[0] = np.uint64(seed)
    if world.over == OVER:
        if not begin(world, kit.rules, kit.plan):
            return False
    elif world.over == PLACED:
        place(world)
    else:
        for thing in range(THINGS, THINGS + world.num_things):
            place_middle(world.body[thing])
    world.over = PLAYING
    see(world, kit.rays)
    return True


@compiled
def _read_actions(world: Any, kit: Kit, first: int, actions: np.ndarray) -> int:
    """Copies the actions of a world's agents; returns 0, or 1 + the first row whose action is not in the space."""
    for agent in range(world.num_agents):
        row = first + row_of(world, kit.rules, agent)
        for part in range(5):
            action = actions[row, part]
            if action < 0 or action >= ACTION_SIZES[part]:
                return 1 + row
            kit.actions[agent, part] = action
    return 0


@compiled
def _play(world: Any, kit: Kit, first: int, limit: int, ends: Ends) -> None:
    """Steps a world, and cuts its episode after `limit` steps."""
    play(world, kit.rules, kit.rays, kit.actions, (kit.control, kit.contacts, kit.arms, kit.ground))
    ends.finished[first // (kit.rules.hiders + kit.rules.seekers)] = world.over
    if world.num_steps >= limit:
        world.over = OVER
    for agent in range(world.num_agents):
        row = first + row_of(world, kit.rules, agent)
        ends.valid[row] = True
        ends.reward[row] = world.reward[agent]
        ends.truncated[row] = world.over != 0


def _make_step(version: str) -> Callable[..., int]:
    @cached
    def step_worlds(
        worlds: np.ndarray,
        kit: Kit,
        actions: np.ndarray,
        seeds: np.ndarray,
        limits: np.ndarray,
        shown: Shown,
        ends: Ends,
    ) -> int:
        """Steps every world, or starts its next episode if it is over.

        Args:
            worlds: [N] records.
            kit: Kit of the game.
            actions: [R, 5] int32.
            seeds: [N] int64 seeds of episodes that start; -1 continues the world's own random numbers.
            limits: [N] int64 steps after which an episode is cut.
            shown: Observations, written.
            ends: Other results, written.

        Returns:
            0; `NO_LAYOUT` if the things of a world do not fit; 1 + the first row whose action is not in the space.
        """
        _ = version  # a part of the cache's key
        rows = kit.rules.hiders + kit.rules.seekers
        ends.reward[:] = 0.0
        ends.valid[:] = False
        ends.is_first[:] = False
        ends.truncated[:] = False
        ends.finished[:] = False
        for number in range(worlds.shape[0]):
            world, first = worlds[number], number * rows
            if world.over != PLAYING:
                if not _begin(world, kit, seeds[number]):
                    return NO_LAYOUT
                ends.is_first[first : first + rows] = True
            else:
                bad = _read_actions(world, kit, first, actions)
                if bad:
                    return bad
                _play(world, kit, first, limits[number], ends)
            observe(world, kit.rules, first, shown)
        return 0

    return step_worlds


step_worlds = _make_step(VERSION)


def failure_of(status: int, actions: np.ndarray) -> str:
    """Returns what is wrong by the result of `step_worlds`; "" for nothing."""
    if status == NO_LAYOUT:
        return "found no layout for all boxes and ramps: use fewer, or a larger map_scale"
    if status == 0:
        return ""
    return f"expected an action in MultiDiscrete({list(ACTION_SIZES)}), got {actions[status - 1].tolist()}"
