"""One step of an episode: hands, physics, sight, rewards, and the statistics that show the phases of learning."""

from typing import Any

import numpy as np

from envpool_bridge.envs.hide_and_seek.game import SIGNAL_NAMES
from envpool_bridge.envs.hide_and_seek.phases import CHASED, Ground, count_step, end_preparation
from envpool_bridge.envs.hide_and_seek.planar.compiled import compiled
from envpool_bridge.envs.hide_and_seek.planar.hands import use_hands
from envpool_bridge.envs.hide_and_seek.planar.physics import advance
from envpool_bridge.envs.hide_and_seek.planar.sight import see
from envpool_bridge.envs.hide_and_seek.planar.solver import Contacts
from envpool_bridge.envs.hide_and_seek.planar.start import write_poses
from envpool_bridge.envs.hide_and_seek.planar.state import (
    MIDDLE_X,
    MIDDLE_Y,
    START_X,
    START_Y,
    THINGS,
    Rules,
    X,
    Y,
)
from envpool_bridge.envs.hide_and_seek.rewards import OUTSIDE

STAT_NAMES: tuple[str, ...] = (
    "max_box_move_prep",
    "num_box_lock_prep",
    "max_ramp_move_prep",
    "num_ramp_lock_prep",
    "max_box_move",
    "num_box_lock",
    "max_ramp_move",
    "num_ramp_lock",
    "hider_return",
    "seeker_return",
    "seen_fraction",
    "discard_episode",
    *SIGNAL_NAMES,
)
"""The infos of an episode's last step, as in the MuJoCo game."""
_AFTER = 4  # place of the first statistic at the end of the episode
_HIDER_RETURN, _SEEKER_RETURN, _SEEN, _DISCARDED = range(8, 12)
_MAX_CONTROL = 0.9
_STILL = 5


def stats_of(world: np.void) -> dict[str, Any]:
    """Returns the statistics of a world's last episode by name."""
    return dict(zip(STAT_NAMES, world["stats"].tolist(), strict=True))


@compiled
def progress_of(num_steps: int, prep_steps: float) -> float:
    """Returns the progress of the preparation phase, in [0, 1]."""
    return min(1.0, num_steps / (prep_steps + 1e-5))


@compiled
def _reward_agents(world: Any) -> bool:
    """Computes the agents' own rewards; returns whether a seeker sees a hider."""
    hiders, agents = world.num_hiders, world.num_agents
    any_seen = False
    for hider in range(hiders):
        seen = False
        for seeker in range(hiders, agents):
            seen = seen or world.sees_agent[seeker, hider] != 0
        world.reward[hider] = -1.0 if seen else 1.0
        any_seen = any_seen or seen
    for seeker in range(hiders, agents):
        sees = False
        for hider in range(hiders):
            sees = sees or world.sees_agent[seeker, hider] != 0
        world.reward[seeker] = 1.0 if sees else -1.0
    return any_seen


@compiled
def _average(reward: np.ndarray, start: int, end: int) -> None:
    """Gives agents from `start` to `end` the mean of their rewards."""
    total = 0.0
    for agent in range(start, end):
        total += reward[agent]
    for agent in range(start, end):
        reward[agent] = total / (end - start)


@compiled
def _share(world: Any, kind: int, any_seen: bool) -> None:
    """Shares rewards within teams: 0 gives all the worst of hiders and the best of seekers, 1 the mean, 2 nothing."""
    hiders, agents = world.num_hiders, world.num_agents
    if kind == 0:
        for agent in range(agents):
            world.reward[agent] = 1.0 if (agent >= hiders) == any_seen else -1.0
    elif kind == 1:
        _average(world.reward, 0, hiders)
        _average(world.reward, hiders, agents)


@compiled
def _is_outside(rules: Rules, x: float, y: float) -> bool:
    return x < rules.low_x or x > rules.high_x or y < rules.low_y or y > rules.high_y


@compiled
def _penalize(world: Any, rules: Rules) -> None:
    """Replaces the rewards of agents outside the bounds, or of all agents while a thing is outside."""
    body = world.body
    for agent in range(world.num_agents):
        if _is_outside(rules, body[agent, X], body[agent, Y]):
            world.reward[agent] = OUTSIDE
    if rules.penalizes_things:
        for thing in range(THINGS, THINGS + world.num_things):
            if _is_outside(rules, body[thing, MIDDLE_X], body[thing, MIDDLE_Y]):
                for agent in range(world.num_agents):
                    world.reward[agent] = OUTSIDE


@compiled
def _record_changes(world: Any, first: int) -> None:
    """Writes the largest movements and the numbers of locks so far."""
    stats, body = world.stats, world.body
    for kind in range(4):
        stats[first + kind] = 0.0
    for number in range(world.num_things):
        thing = body[THINGS + number]
        moved = np.sqrt((thing[MIDDLE_X] - thing[START_X]) ** 2 + (thing[MIDDLE_Y] - thing[START_Y]) ** 2)
        ramp = 2 if number >= world.num_boxes else 0
        stats[first + ramp] = max(stats[first + ramp], moved)
        stats[first + ramp + 1] += world.locked[number]


@compiled
def _end_preparation(world: Any, ground: Ground) -> None:
    """Records the changes during the preparation phase, once, and the signals of its end."""
    world.prep_ended = 1
    _record_changes(world, 0)
    agents, things = world.num_agents, world.num_things
    sizes = (world.num_hiders, agents, world.num_boxes)
    end_preparation(
        world.signals[:],
        world.now[: agents + things],
        world.locked[:],
        world.wall[: world.num_walls],
        world.door[: world.num_doors],
        sizes,
        ground,
    )


@compiled
def _finish(world: Any, ground: Ground) -> None:
    """Writes the statistics of an episode at its end."""
    if not world.prep_ended:
        _end_preparation(world, ground)
    _record_changes(world, _AFTER)
    world.stats[_HIDER_RETURN] = world.team_return[0]
    world.stats[_SEEKER_RETURN] = world.team_return[1]
    world.stats[_SEEN] = world.seen_steps / max(1, world.rewarded_steps)
    world.stats[_DISCARDED] = world.discarded
    world.signals[CHASED] /= max(1, world.rewarded_steps)
    for number in range(len(world.signals)):
        world.stats[_DISCARDED + 1 + number] = world.signals[number]


@compiled
def _set_controls(world: Any, actions: np.ndarray, control: np.ndarray, prepares: bool) -> None:
    """Converts actions [A, 5] to controls [A, 3]; seekers stand still during the preparation phase."""
    for agent in range(world.num_agents):
        if prepares and agent >= world.num_hiders:
            for part in range(5):
                actions[agent, part] = _STILL if part < 3 else 0
        for axis in range(3):
            control[agent, axis] = _MAX_CONTROL * (actions[agent, axis] - _STILL) / _STILL


@compiled
def play(
    world: Any,
    rules: Rules,
    rays: np.ndarray,
    actions: np.ndarray,
    scratch: tuple[np.ndarray, Contacts, np.ndarray, Ground],
) -> None:
    """Steps a world.

    Args:
        world: Record of a world.
        rules: Rules of the game.
        rays: [2, L] directions of the lidar.
        actions: [A, 5], changed where seekers stand still.
        scratch: Scratch for controls [A, 3], contacts, arms of grips [A, 5] and the floor.
    """
    control, contacts, arms, ground = scratch
    prepares = world.num_steps < rules.prep_steps
    _set_controls(world, actions, control, prepares)
    use_hands(world, actions, rules.locks_ramps)
    sound = advance(world, control, contacts, arms, rules.wall_friction)
    world.num_steps += 1
    world.over = world.num_steps >= rules.horizon
    for agent in range(world.num_agents):
        world.reward[agent] = 0.0
    if not sound:
        world.over = world.discarded = 1
        _finish(world, ground)
        return
    see(world, rays)
    write_poses(world)
    walls, sizes = world.wall[: world.num_walls], (world.num_hiders, world.num_agents, world.num_boxes, not prepares)
    count_step(world.signals[:], world.before[:], world.now[:], world.sees_agent[:], walls, sizes)
    if not prepares:
        any_seen = _reward_agents(world)
        _share(world, rules.reward, any_seen)
        _penalize(world, rules)
        world.rewarded_steps += 1
        world.seen_steps += any_seen
    world.team_return[0] += world.reward[0]
    world.team_return[1] += world.reward[world.num_agents - 1]
    if not world.prep_ended and progress_of(world.num_steps, rules.prep_steps) >= 1.0:
        _end_preparation(world, ground)
    if world.over:
        _finish(world, ground)
