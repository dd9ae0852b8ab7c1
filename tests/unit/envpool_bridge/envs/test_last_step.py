"""Last action and last reward in observations: at steps, at resets, in replays, of one agent and of several."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.last_step import LastStep, first_action, with_last_step
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.protocol import EpisodeReset, first_rows, step_rows
from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec
from envpool_bridge.spec.tree import take
from tests.support.scripted_agents import Alike

STEPS, ROWS = 9, 2
BOTH = LastStep(action=True, reward=True)


class Counts(gymnasium.Env):
    """Observes the number of steps, rewards it by a half of it, ends after four steps, and changes the given action."""

    observation_space = spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space = spaces.Box(np.float32([0.5, -1.0]), np.float32([2.0, 1.0]))

    def reset(self, *, seed=None, options=None):
        self.number = 0
        return np.float32([0.0]), {}

    def step(self, action):
        action[...] = 0.75
        self.number += 1
        return np.float32([self.number]), 0.5 * self.number, self.number == 4, False, {}


def played(source, reset=None, seed=0):
    spec = source.spec()
    num_rows = ROWS * spec.rows_per_env
    slot = allocate_slots(make_layout(spec, PoolShape(1, 1, 1, num_rows, STEPS, 1), {}))[0]
    rows, rng = source.make_rows(range(num_rows), 3, False), np.random.default_rng(seed)
    rows.reset(reset or EpisodeReset((0,) * num_rows, (None,) * num_rows), first_rows(slot))
    step_rows(slot, slice(0, STEPS)).prepare()
    for t in range(STEPS):
        discrete = isinstance(spec.action, DiscreteSpec)
        drawn = rng.integers(0, spec.action.num_values, num_rows) if discrete else rng.normal(size=(num_rows, 2))
        slot.action[t] = drawn
        rows.step(slot.action[t], step_rows(slot, t))
    rows.verify(take(slot.observation, slice(1, None)), slot.reward)
    rows.close()
    return slot


def assert_last_steps(slot, first, executed):
    """Compares with the slot's own actions and rewards; `is_first` marks observations after no step."""
    seen = slot.observation
    assert slot.is_first[1:].any()
    assert not slot.is_first[1:].all()
    for t in range(STEPS):
        for row, is_first in enumerate(slot.is_first[t + 1]):
            np.testing.assert_array_equal(seen["last_action"][t + 1, row], first if is_first else executed[t, row])
            assert seen["last_reward"][t + 1, row] == (0.0 if is_first else slot.reward[t, row])
    for row in range(slot.is_first.shape[1]):
        np.testing.assert_array_equal(seen["last_action"][0, row], first)
        assert seen["last_reward"][0, row] == 0.0


def test_continuous_actions_and_rewards_are_observed():
    source = with_last_step(GymnasiumSource(Counts, "Counts"), "gymnasium", BOTH)
    assert source.spec().observation == {
        "last_action": ArraySpec((2,), "float32", (0.5, -1.0), (2.0, 1.0)),
        "last_reward": ArraySpec((), "float32"),
        "observation": ArraySpec((1,), "float32", 0.0, 9.0),
    }
    slot = played(source)
    assert_last_steps(slot, [0.5, 0.0], np.clip(slot.action, np.float32([0.5, -1.0]), np.float32([2.0, 1.0])))
    np.testing.assert_array_equal(slot.observation["observation"][:6, 0, 0], [0, 1, 2, 3, 4, 0])


def test_replayed_episodes_have_their_last_step():
    source = with_last_step(GymnasiumSource(Counts, "Counts"), "gymnasium", BOTH)
    before = np.float32([[1.0, 0.5], [1.5, -0.5]])
    slot = played(source, EpisodeReset((0, 0), (before, None)))
    np.testing.assert_array_equal(slot.observation["last_action"][0], [[1.5, -0.5], [0.5, 0.0]])
    np.testing.assert_array_equal(slot.observation["last_reward"][0], [1.0, 0.0])


def test_config_adds_the_chosen_items():
    source = EnvConfig("CartPole-v1", last_reward=True).source()
    assert set(source.spec().observation) == {"last_reward", "observation"}
    slot = played(
        EnvConfig("CartPole-v1", last_action=True, last_reward=True, kwargs='{"max_episode_steps": 4}').source()
    )
    assert_last_steps(slot, 0, slot.action)


def test_agents_observe_their_own_last_step():
    source = with_last_step(ParallelSource(Alike), "pettingzoo", BOTH)
    slot = played(source)
    seen, steps = slot.observation, 0
    for t, row in np.ndindex(STEPS, slot.is_first.shape[1]):
        if slot.valid[t, row]:
            assert seen["last_action"][t + 1, row] == slot.action[t, row]
            assert seen["last_reward"][t + 1, row] == slot.reward[t, row]
            steps += 1
        if slot.is_first[t + 1, row]:
            assert seen["last_action"][t + 1, row] == seen["last_reward"][t + 1, row] == 0
    assert steps > STEPS
    assert len(np.unique(seen["last_reward"])) > 1


def test_evaluated_agents_keep_the_last_step_in_observations():
    source = with_last_step(ParallelSource(Alike, evaluation_env=lambda: Alike()), "mpe", BOTH)
    evaluated = source.for_evaluation()
    assert evaluated.make_env is source.evaluation_env
    assert evaluated.spec() == source.spec()


def test_first_action_has_the_structure_of_the_space():
    space = spaces.Dict(
        {
            "gear": spaces.Discrete(3, start=-1),
            "arm": spaces.Tuple([spaces.Box(-5.0, -2.0, (2,)), spaces.MultiBinary(2)]),
            "keys": spaces.MultiDiscrete([2, 3], start=[1, 0]),
        }
    )
    action = first_action(space)
    assert space.contains({**action, "gear": np.int64(action["gear"])})
    assert action["gear"] == -1
    np.testing.assert_array_equal(action["arm"][0], [-2.0, -2.0])
    np.testing.assert_array_equal(action["keys"], [1, 0])


def test_environments_stepped_together_are_rejected():
    with pytest.raises(UserError, match="last_action and last_reward are not for suite 'gymnasium_vector'"):
        EnvConfig("CartPole-v1", "gymnasium_vector", last_action=True).source()


def test_taken_names_are_rejected():
    class Taken(Counts):
        observation_space = spaces.Dict({"last_reward": spaces.Box(0.0, 1.0)})

    with pytest.raises(UserError, match="Taken: observations have an item 'last_reward' of their own"):
        with_last_step(GymnasiumSource(Taken), "gymnasium", BOTH).spec()
