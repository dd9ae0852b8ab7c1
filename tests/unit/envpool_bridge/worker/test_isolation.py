"""Rows whose environments are replaced: the number of an episode, from which its seed follows, is the published one."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.protocol import EpisodeReset, first_rows, step_rows
from envpool_bridge.envs.seeding import episode_seed
from envpool_bridge.errors import WorkerError
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from envpool_bridge.worker.isolation import IsolatedRows

SEED, T = 1, 10
EPISODES = {episode_seed(SEED, 0, episode): episode for episode in range(100)}


class Shows(gymnasium.Env):
    """Shows its episode's number and its steps; episodes of two steps, of which some can never be generated."""

    observation_space = spaces.Box(0, 100, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, impossible):
        self.impossible = impossible

    def reset(self, *, seed=None, options=None):
        assert seed is not None
        if EPISODES[seed] in self.impossible:
            raise RuntimeError("this level cannot be generated")
        self.shown = np.array([EPISODES[seed], 0], np.float32)
        return self.shown.copy(), {}

    def step(self, action):
        if action == 1:
            raise RuntimeError("out of ideas")
        self.shown[1] += 1
        return self.shown.copy(), 0.0, bool(self.shown[1] == 2), False, {}


def play(impossible, first=0, replayed=None, actions=(0,) * T, max_restarts=5):
    """Returns the slot of T steps, and the episode of each observation as it is counted."""
    source = GymnasiumSource(lambda: Shows(impossible), "Shows")
    spec = source.spec()
    (slot,) = allocate_slots(make_layout(spec, PoolShape(1, 1, 1, 1, T, 1), {}))
    step_rows(slot, slice(0, T)).prepare()
    rows = IsolatedRows(source, spec, [0], SEED, (max_restarts, 1e9))
    rows.reset(EpisodeReset((first,), (replayed,)), first_rows(slot))
    for t, action in enumerate(actions):
        rows.step(np.array([action], np.int32), step_rows(slot, t))
    rows.close()
    return slot, first + np.concatenate([[0], np.cumsum(slot.is_first[1:, 0])])


@pytest.mark.parametrize(
    ("impossible", "first", "actions", "expected"),
    [
        ({1}, 0, (0,) * T, [0, 2, 3]),
        ({1, 2}, 0, (0,) * T, [0, 3, 4]),
        ({0}, 0, (0,) * T, [1, 2, 3]),
        ({4, 5}, 4, (0,) * T, [6, 7, 8]),
        ({1}, 0, (0, 1, *(0,) * (T - 2)), [0, 2, 3]),  # the step fails, then the next reset
        (set(), 0, (0, 1, *(0,) * (T - 2)), [0, 1, 2]),
    ],
)
def test_played_episodes_are_the_published_ones(impossible, first, actions, expected):
    slot, counted = play(impossible, first, actions=actions)
    valid = slot.valid[:, 0]
    assert slot.observation[1:, 0, 0][valid].tolist() == counted[1:][valid].tolist()
    assert sorted(set(counted[1:][valid].tolist()))[:3] == expected
    np.testing.assert_array_equal(slot.is_first[1:, 0], ~valid)


def test_an_episode_whose_replay_fails_is_followed_by_the_next():
    slot, counted = play(set(), 3, replayed=np.array([0, 1], np.int32))
    valid = slot.valid[:, 0]
    assert slot.is_first[0, 0]
    assert slot.observation[1:, 0, 0][valid].tolist() == counted[1:][valid].tolist()
    assert counted[1:][valid][0] == 4


def test_a_skipped_episode_repeats_the_last_observation():
    slot, _ = play({1, 2})
    assert slot.observation[:7, 0].tolist() == [[0, 0], [0, 1], [0, 2], [0, 2], [0, 2], [3, 0], [3, 1]]
    assert slot.valid[:7, 0].tolist() == [True, True, False, False, False, True, True]


def test_failing_resets_in_a_row_disable_an_environment():
    slot, _ = play(set(range(1, 100)), max_restarts=3)
    assert slot.valid[:, 0].tolist() == [True, True] + [False] * (T - 2)
    assert (slot.observation[3:, 0] == [0, 2]).all()
    with pytest.raises(WorkerError, match="this level cannot be generated"):
        play(set(range(100)))


@pytest.mark.parametrize("closes", [True, False])
def test_an_environment_that_is_given_up_is_closed(closes):
    made = []

    class Fails(Shows):
        def __init__(self):
            super().__init__(set())
            self.is_closed = False
            made.append(self)

        def step(self, action):
            raise RuntimeError("out of ideas")

        def close(self):
            self.is_closed = True
            if not closes:
                raise OSError("cannot close")

    source, spec = GymnasiumSource(Fails, "Fails"), GymnasiumSource(lambda: Shows(set()), "Fails").spec()
    (slot,) = allocate_slots(make_layout(spec, PoolShape(1, 1, 1, 1, T, 1), {}))
    step_rows(slot, slice(0, T)).prepare()
    rows = IsolatedRows(source, spec, [0], SEED, (1, 1e9))
    rows.reset(EpisodeReset((0,), (None,)), first_rows(slot))
    given_up = []
    rows.on_disabled = given_up.append
    for t in range(4):
        rows.step(np.zeros(1, np.int32), step_rows(slot, t))
    assert given_up == [1]
    assert [env.is_closed for env in made] == [True, True], "the first one and its replacement"
