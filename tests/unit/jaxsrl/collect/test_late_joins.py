"""Agents that join late, each in other episodes: the number of an episode, which seeds it, is that of its environment."""

import itertools
import random

import numpy as np
import pytest
from gymnasium import spaces

from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.protocol import EpisodeReset, first_rows, step_rows
from envpool_bridge.envs.seeding import EpisodeSeeds
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots, starts_of_envs
from envpool_bridge.worker.isolation import IsolatedRows
from jaxsrl.collect.episode_log import EpisodeLog
from tests.chaos.counting import PATIENT, begin, collect, joined, kill

SEED, ENVS, AGENTS, T, SLOTS = 7, 2, 3, 4, 12
ROWS = ENVS * AGENTS
FIELDS = ("observation", "is_first", "reward", "terminated", "truncated", "valid")


class Relay:
    """Agents observe (part of the seed, step, sum of all actions). One is there from the first step; the others join later.

    The seed chooses which, and when the others join and one leaves. An episode has 6 steps.
    """

    possible_agents = ("a", "b", "c")

    def __init__(self):
        self.agents = []
        self.seeds = []

    def observation_space(self, agent):
        return spaces.Box(0, np.inf, (3,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(4)

    def reset(self, seed=None, options=None):
        draw = random.Random(seed)
        self.seeds.append(seed)
        self.steps = self.total = 0
        first, second, third = draw.sample(self.possible_agents, 3)
        self.joins = {second: draw.randint(1, 4), third: draw.randint(1, 5)}
        self.leaves = {second: 5}
        self.agents = [first]
        return self._seen(), {}

    def _seen(self):
        shown = np.array([identity_of(self.seeds[-1]), self.steps, self.total], np.float32)
        return {name: shown.copy() for name in self.agents}

    def step(self, actions):
        if sum(actions.values()) == 3 * len(actions) and self.steps == 4:
            raise ValueError("all want to go on")
        acted = self.agents
        self.steps, self.total = self.steps + 1, self.total + sum(actions.values())
        leaving = [name for name in acted if self.leaves.get(name) == self.steps]
        self.agents = [name for name in acted if name not in leaving]
        self.agents += [name for name, at in self.joins.items() if at == self.steps]
        self.agents.sort()
        observations = self._seen() | {name: next(iter(self._seen().values())) for name in leaving}
        ended = self.steps == 6
        self.agents = [] if ended else self.agents
        rewards = {name: float(self.total) for name in acted}
        return observations, rewards, {n: n in leaving for n in acted}, dict.fromkeys(acted, ended), {}

    def close(self):
        pass


def identity_of(seed):
    return seed % 2**24


SOURCE = ParallelSource(Relay)
SPEC = SOURCE.spec()
ACTIONS = np.random.default_rng(0).integers(0, 3, (SLOTS, T, ROWS)).astype(np.int32)  # never three times 3


def play(reset, log, first=0, last=SLOTS):
    """Steps the environments from slot `first` to before slot `last`; returns the slots and the environments' seeds."""
    layout = make_layout(SPEC, PoolShape(1, 1, 1, ROWS, T, 1), {})
    rows, slots = SOURCE.make_rows(range(ROWS), SEED, False), []
    for number in range(first, last):
        (slot,) = allocate_slots(layout)
        if slots:
            slot.observation[0], slot.is_first[0] = slots[-1].observation[-1], slots[-1].is_first[-1]
        else:
            rows.reset(reset, first_rows(slot))
        step_rows(slot, slice(0, T)).prepare()
        slot.action[...] = ACTIONS[number]
        for t in range(T):
            rows.step(slot.action[t], step_rows(slot, t))
        log.observe(slot)
        slots.append(slot)
    return slots, [env.seeds for env in rows._envs]


@pytest.fixture(scope="module")
def whole():
    slots, seeds = play(EpisodeReset((0,) * ROWS, (None,) * ROWS), EpisodeLog(ROWS, 0, SPEC))
    # Every row has more starts than its environment has episodes, so no row's own count is right.
    starts = np.concatenate([slot.is_first[1:] for slot in slots]).sum(0)
    assert (starts.reshape(ENVS, AGENTS).min(1) > [len(each) - 1 for each in seeds]).all()
    return slots, seeds


@pytest.mark.parametrize("cuts", [*[(cut,) for cut in range(1, SLOTS)], (2, 5), (3, 4, 9)])
def test_a_resumed_run_is_the_uninterrupted_one(whole, cuts):
    expected, seeds = whole
    reset, log = EpisodeReset((0,) * ROWS, (None,) * ROWS), EpisodeLog(ROWS, 0, SPEC)
    for first, last in itertools.pairwise((0, *cuts, SLOTS)):
        if first:
            arrays, log = log.to_arrays(), EpisodeLog(ROWS, first * T, SPEC)
            reset = log.restore(arrays)
        slots, resumed = play(reset, log, first, last)
        for slot, wanted in zip(slots, expected[first:last], strict=True):
            for name in FIELDS:
                np.testing.assert_array_equal(getattr(slot, name), getattr(wanted, name), err_msg=name)
    for own, all_seeds in zip(resumed, seeds, strict=True):
        assert own == all_seeds[-len(own) :]


def test_an_episode_too_long_to_replay_is_followed_by_the_next():
    log = EpisodeLog(ROWS, 0, SPEC, max_steps=0)
    _, seeds = play(EpisodeReset((0,) * ROWS, (None,) * ROWS), log, last=4)  # within an episode of every environment
    reset = EpisodeLog(ROWS, 4 * T, SPEC).restore(log.to_arrays())
    assert reset.episodes == tuple(np.repeat([len(each) for each in seeds], AGENTS))


def episodes_shown(observation):
    """Returns the numbers of the episodes of environment 0 in their order, from observations [T, AGENTS, 3]."""
    numbers = {identity_of(EpisodeSeeds(SEED, 0).seed(number)): number for number in range(100)}
    shown = [numbers[int(identity)] for identity in observation[:, :, 0].max(1)]
    return [number for number, _ in itertools.groupby(shown)]


def test_the_episode_after_a_worker_died_is_the_next_one():
    def disturb(pool, sequence):
        if sequence == 4:
            kill(pool, 0)

    with EnvPool(SOURCE, PoolShape(1, 1, 1, AGENTS, T, 3), PoolOptions(run_seed=SEED, supervision=PATIENT)) as pool:
        begin(pool)
        shown = episodes_shown(joined(collect(pool, 10, disturb))["observation"])
        assert pool.supervision.restarts == 1
    assert len(shown) > 4
    assert shown == list(range(len(shown)))


def test_the_episode_after_a_dropped_one_is_the_next_one():
    steps = 40
    (slot,) = allocate_slots(make_layout(SPEC, PoolShape(1, 1, 1, AGENTS, steps, 1), {}))
    step_rows(slot, slice(0, steps)).prepare()
    rows = IsolatedRows(SOURCE, SPEC, range(AGENTS), SEED, (100, 1e9))
    rows.reset(EpisodeReset((0,) * AGENTS, (None,) * AGENTS), first_rows(slot))
    cut = []
    rows.on_cut = cut.append
    for t in range(steps):
        rows.step(np.full(AGENTS, 3 if t > 20 else 0, np.int32), step_rows(slot, t))
    rows.close()
    assert len(cut) > 2
    shown = episodes_shown(slot.observation)
    assert shown == list(range(len(shown)))


def test_a_join_starts_no_episode_of_the_environment():
    is_first = np.array([[1, 1, 0, 1], [0, 1, 0, 0]], bool)
    np.testing.assert_array_equal(starts_of_envs(is_first, 2), [[1, 1, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(starts_of_envs(is_first, 1), is_first)
    assert starts_of_envs(is_first[:0], 2).shape == (0, 4)
