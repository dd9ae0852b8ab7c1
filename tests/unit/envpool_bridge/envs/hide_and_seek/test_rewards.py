"""Who is rewarded, with hand values."""

import numpy as np
import pytest

from envpool_bridge.envs.hide_and_seek.game import Base, RandomWalls
from envpool_bridge.envs.hide_and_seek.rewards import Rewards

NOWHERE = np.zeros((4, 4), bool)


def sees(*pairs):
    """Of agents 0 and 1 hiding, 2 and 3 seeking."""
    seen = np.eye(4, dtype=bool)
    for pair in pairs:
        seen[pair] = True
    return seen


def rewards(seen, reward="joint_zero_sum", game=RandomWalls, places=None):
    centers = np.full((5, 3), 3.0)
    for place, xy in (places or {}).items():
        centers[place, :2] = xy
    return Rewards(game(reward=reward), 2, 4).compute(seen, centers).tolist()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("joint_zero_sum", [-1.0, -1.0, 1.0, 1.0]),
        ("joint_mean", [0.0, 0.0, 0.0, 0.0]),
        ("selfish", [-1.0, 1.0, -1.0, 1.0]),
    ],
)
def test_a_seeker_that_sees_one_hider(kind, expected):
    assert rewards(sees((3, 0)), kind) == expected


def test_rewards_depend_only_on_seen_hiders():
    assert rewards(sees((0, 2), (1, 3), (2, 3), (0, 1))) == [1.0, 1.0, -1.0, -1.0]


def test_agent_outside_gets_minus_ten():
    inside = {0: (-5.9, 11.9), 2: (11.9, -5.9)}
    assert rewards(sees(), places=inside) == [1.0, 1.0, -1.0, -1.0]
    assert rewards(sees(), places={0: (-6.1, 3), 2: (3, 12.1), 4: (50, 50)}) == [-10.0, 1.0, -10.0, -1.0]


def test_quadrant_game_penalizes_things_outside():
    assert rewards(sees(), game=Base, places={4: (5.8, 0.2)}) == [1.0, 1.0, -1.0, -1.0]
    assert rewards(sees(), game=Base, places={4: (5.95, 3)}) == [-10.0] * 4
    assert rewards(sees(), game=Base, places={1: (0.05, 3)}) == [1.0, -10.0, -1.0, -1.0]


def test_a_larger_map_has_wider_bounds():
    rule = Rewards(RandomWalls(map_scale=2.0), 1, 2)
    centers = np.array([[23.0, -11.0, 0.1], [25.0, 0.0, 0.1]])
    assert rule.compute(np.eye(2, dtype=bool), centers).tolist() == [1.0, -10.0]
