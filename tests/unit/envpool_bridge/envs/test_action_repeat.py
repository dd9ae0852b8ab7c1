"""Repeated actions of one agent and of several, against plain loops."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from envpool_bridge.envs.action_repeat import ActionRepeat, ActionRepeatAgents, with_action_repeat
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.protocol import EpisodeReset, first_rows, step_rows
from envpool_bridge.envs.seeding import EpisodeSeeds
from envpool_bridge.envs.suites.turn_based import TurnBased
from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from tests.support.scripted_agents import Scripted

STEPS, REPEAT, SEED = 40, 3, 5


def test_a_gymnasium_environment_repeats_as_a_plain_loop():
    config = EnvConfig("CartPole-v1", "gymnasium", kwargs='{"max_episode_steps": 20}', action_repeat=REPEAT)
    source = config.source()
    spec = source.spec()
    assert spec.action_repeat == REPEAT
    slot = allocate_slots(make_layout(spec, PoolShape(1, 1, 1, 1, STEPS, 1), {}))[0]
    rows, actions = source.make_rows([0], SEED, False), np.random.default_rng(1).integers(0, 2, (STEPS, 1))
    rows.reset(EpisodeReset((0,), (None,)), first_rows(slot))
    step_rows(slot, slice(0, STEPS)).prepare()
    for t in range(STEPS):
        rows.step(actions[t].astype(np.int32), step_rows(slot, t))
    rows.close()

    env, seeds, episode = gymnasium.make("CartPole-v1", max_episode_steps=20), EpisodeSeeds(SEED, 0), 0
    observation, _ = env.reset(seed=seeds.seed(0))
    expected, ended, counts = [(observation, 0.0, False, False)], False, set()
    for action in actions[:, 0]:
        if ended:
            episode, ended = episode + 1, False
            expected.append((env.reset(seed=seeds.seed(episode))[0], 0.0, False, False))
            continue
        total = 0.0
        for count in range(1, REPEAT + 1):
            observation, reward, terminated, truncated, _ = env.step(action)
            total, ended = total + reward, terminated or truncated
            if ended:
                counts.add(count)
                break
        expected.append((observation, total, terminated, truncated))
    observations, rewards, terminated, truncated = zip(*expected, strict=True)
    np.testing.assert_array_equal(slot.observation[:, 0], np.float32(observations))
    np.testing.assert_array_equal(slot.reward[:, 0], rewards[1:])
    np.testing.assert_array_equal(slot.terminated[:, 0], terminated[1:])
    np.testing.assert_array_equal(slot.truncated[:, 0], truncated[1:])
    assert any(terminated)
    assert any(truncated)
    assert min(counts) < REPEAT, "no episode ended within a repetition"


class OneRewardArray(gymnasium.Env):
    """An environment that returns the same array as reward in each step."""

    observation_space = spaces.Discrete(1)

    def __init__(self):
        self.reward = np.ones(())

    def step(self, action):
        return 0, self.reward, False, False, {}


def test_rewards_are_summed_without_changing_them():
    env = ActionRepeat(OneRewardArray(), REPEAT)
    assert [float(env.step(0)[1]) for _ in range(2)] == [REPEAT, REPEAT]


class DoublesActions(gymnasium.Env):
    """An environment that changes its argument, and returns it as reward."""

    observation_space = spaces.Discrete(1)

    def step(self, action):
        action *= 2
        return 0, float(action[0]), False, False, {}


class DoublesActionsOfAgents:
    possible_agents = agents = ("a", "b")

    def observation_space(self, agent):
        return spaces.Discrete(1)

    def step(self, actions):
        rewards = {name: DoublesActions().step(action)[1] for name, action in actions.items()}
        ends = dict.fromkeys(actions, False)
        actions.clear()
        return dict.fromkeys(rewards, 0), rewards, ends, ends, {}


def test_each_repetition_has_the_action_that_was_chosen():
    assert ActionRepeat(DoublesActions(), REPEAT).step(np.ones(1))[1] == 2 * REPEAT
    env = ActionRepeatAgents(DoublesActionsOfAgents(), REPEAT)
    assert env.step({"a": np.ones(1), "b": np.full(1, 5.0)})[1] == {"a": 2 * REPEAT, "b": 10 * REPEAT}


def test_agents_repeat_until_one_ends_or_joins():
    source = with_action_repeat(ParallelSource(Scripted, "Scripted"), REPEAT)
    assert source.spec().action_repeat == REPEAT
    env = source.make_env()
    env.reset(seed=0)
    steps = [env.step(dict.fromkeys(env.agents, 0)) for _ in range(3)]
    # b ends at step 2, c joins at step 3, and the episode ends at step 5.
    assert [step[1] for step in steps] == [{"a": 3.0, "b": 23.0}, {"a": 3.0}, {"a": 9.0, "c": 49.0}]
    assert [step[0]["a"][1] for step in steps] == [2.0, 3.0, 5.0]
    assert [step[2].get("b", False) for step in steps] == [True, False, False]
    assert [step[3]["a"] for step in steps] == [False, False, True]


def test_a_pettingzoo_task_repeats_as_a_plain_loop():
    pytest.importorskip("mpe2")
    plain = EnvConfig("simple_spread_v3", "mpe", kwargs='{"max_cycles": 10}')
    env = plain.source().make_env()
    repeated = (
        EnvConfig("simple_spread_v3", "mpe", kwargs='{"max_cycles": 10}', action_repeat=REPEAT).source().make_env()
    )
    env.reset(seed=SEED)
    repeated.reset(seed=SEED)
    rng = np.random.default_rng(1)
    for count in (3, 3, 3, 1):
        actions = {name: int(rng.integers(0, 5)) for name in env.agents}
        total = dict.fromkeys(actions, 0.0)
        for _ in range(count):
            observations, rewards, _, truncated, _ = env.step(actions)
            total = {name: total[name] + rewards[name] for name in total}
        found, sums, _, ends, _ = repeated.step(actions)
        assert (sums, ends) == (total, truncated)
        for name, observation in observations.items():
            np.testing.assert_array_equal(found[name], observation)
    assert all(ends.values())


class Turns:
    possible_agents = ()


@pytest.mark.parametrize(
    ("suite", "message"),
    [("atari", "frame_skip"), ("gymnasium_vector", "together"), ("hanabi", "move"), ("pgx", "move")],
)
def test_suites_that_cannot_repeat_are_rejected(suite, message):
    with pytest.raises(UserError, match=f"action_repeat is not for suite '{suite}', .*{message}"):
        EnvConfig("x", suite, action_repeat=2)


def test_other_bad_repetitions_are_rejected():
    with pytest.raises(UserError, match="action_repeat must be at least 1: got 0"):
        EnvConfig(action_repeat=0)
    with pytest.raises(UserError, match="suite 'atari'"):
        EnvConfig("ALE/Pong-v5", action_repeat=2).source()
    with pytest.raises(UserError, match="games of turns"):
        ActionRepeatAgents(TurnBased(Turns()), 2)


MASKED = spaces.Dict({"action_mask": spaces.MultiBinary(2), "seen": spaces.Discrete(3)})


class Masked(gymnasium.Env):
    observation_space, action_space = MASKED, spaces.Discrete(2)


class MaskedAgents:
    possible_agents = agents = ("a", "b")

    def observation_space(self, agent):
        return MASKED

    def action_space(self, agent):
        return spaces.Discrete(2)

    def close(self):
        pass


@pytest.mark.parametrize("source", [GymnasiumSource(Masked), ParallelSource(MaskedAgents)])
def test_environments_with_action_masks_are_rejected(source):
    assert source.spec().action_repeat == 1
    with pytest.raises(UserError, match="action_repeat is not for environments with action masks"):
        with_action_repeat(source, 2).spec()
