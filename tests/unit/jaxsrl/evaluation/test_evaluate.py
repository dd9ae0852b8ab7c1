"""Evaluation: exactly the episodes asked for, each counted once, the same for the same seed, and never training's."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

import jaxsrl.evaluation.evaluate
from agents.api import Agent, Mode, OnPolicy
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumRows, GymnasiumSource
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.seeding import episode_seed
from envpool_bridge.errors import UserError
from jaxsrl.envs.registry import make_env
from jaxsrl.evaluation.evaluate import EpisodeOptions, EvaluationReport, describe_limit, episode_limit, evaluate
from jaxsrl.evaluation.worker_rows import in_workers
from jaxsrl.learner.mesh import LearnerMesh
from tests.support.scripted_agents import Alike


class Countdown(gymnasium.Env):
    """An episode of `1 + seed modulo 9` steps that pays what its number of steps and the action say."""

    made: list["Countdown"] = []  # noqa: RUF012  every environment of a test, in order

    def __init__(self):
        self.observation_space = spaces.Box(-1.0, 20.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.seeds, self.closed = [], False
        Countdown.made.append(self)

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.left = self.length(seed)
        return np.array([self.left], np.float32), {}

    def length(self, seed):
        return 1 + seed % 9

    def step(self, action):
        self.left -= 1
        truncated = self.left == 0 and len(self.seeds) % 2 == 0
        info = {"length": self.length(self.seeds[-1])}
        return np.array([self.left], np.float32), 1.0 + action, self.left == 0 and not truncated, truncated, info

    def close(self):
        self.closed = True


class RowSpeeds(Countdown):
    """Episodes of the first row take one step, of every other row twenty."""

    def length(self, seed):
        return 1 if self is Countdown.made[2] else 20  # the first two showed their kind and their spec


@pytest.fixture(autouse=True)
def none_made():
    Countdown.made.clear()


def parity_agent():
    """Acts 1 where the observation is odd if greedy; by its key if sampled."""

    def act(params, observation, agent_state, is_first, keys, mode):
        if mode is Mode.GREEDY:
            action = observation[:, 0].astype(jnp.int32) % 2
        else:
            action = jax.vmap(lambda key: jax.random.randint(key, (), 0, 2))(keys)
        return action, {}, agent_state

    return Agent("parity", None, lambda num_rows: (), act, None, {}, OnPolicy())


def test_every_episode_is_counted_once_with_its_own_seed():
    report = evaluate(parity_agent(), {}, Countdown, episodes=11, seed=5, max_rows=4)
    rows = Countdown.made[2:]
    assert len(rows) == 4
    for episode in range(11):
        seed = rows[episode % 4].seeds[episode // 4]
        length = 1 + seed % 9
        assert report.lengths[episode] == length
        assert report.returns[episode] == sum(1.0 + left % 2 for left in range(1, length + 1))
    seeds = [seed for row in rows for seed in row.seeds]
    assert len(set(seeds)) == len(seeds)
    assert len(set(report.lengths)) > 1
    assert all(env.closed for env in Countdown.made)


def test_evaluate_does_not_favor_short_episodes():
    report = evaluate(parity_agent(), {}, RowSpeeds, episodes=8, max_rows=4)
    # The first row could have finished all eight before any other finished one.
    assert report.lengths == (1, 20, 20, 20, 1, 20, 20, 20)


def test_environments_whose_episodes_are_played_rest(monkeypatch):
    steps = 0

    def counted(self, action, step=RowSpeeds.step):
        nonlocal steps
        steps += 1
        return step(self, action)

    monkeypatch.setattr(RowSpeeds, "step", counted)
    source = GymnasiumSource(RowSpeeds, info_fields=("length",))
    report = evaluate(parity_agent(), {}, source, episodes=8, max_rows=4)
    assert steps == sum(report.lengths) == 2 * (1 + 20 * 3)
    assert report.to_json()["info_means"] == {"length": (1 + 20 * 3) / 4}
    resting, rested, steps = steps, report, 0
    Countdown.made.clear()
    monkeypatch.setattr(GymnasiumRows, "_rest", lambda self, row: None)
    assert evaluate(parity_agent(), {}, source, episodes=8, max_rows=4) == rested
    assert steps > resting


def test_fewer_episodes_than_rows_make_fewer_environments():
    report = evaluate(parity_agent(), {}, Countdown, episodes=3, max_rows=32)
    assert len(report.returns) == 3
    assert len(Countdown.made) == 2 + 3


class Sometimes(Countdown):
    """Episodes that never end where the seed is odd, and pay 1 a step plus the action."""

    def step(self, action):
        self.left -= self.seeds[-1] % 2 == 0
        return np.array([self.left], np.float32), 1.0 + action, self.left == 0, False, {}


@pytest.mark.parametrize("processes", [0, 2])
def test_endless_episodes_are_cut_and_counted(processes):
    seeds = (3, 1, 4, 7, 6, 5, 9, 8)
    options = EpisodeOptions(max_episode_steps=12, seeds=seeds)
    source = in_workers(Sometimes, processes)
    report = evaluate(parity_agent(), {}, source, episodes=16, max_rows=4, options=options)
    wanted = [12 if seed % 2 else 1 + seed % 9 for seed in seeds] * 2
    assert list(report.lengths) == wanted
    # Of an endless episode the observation stays that of its start.
    paid = [sum(1.0 + (1 + seed % 9 if seed % 2 else left) % 2 for left in range(length, 0, -1))
            for seed, length in zip(seeds * 2, wanted, strict=True)]  # fmt: skip
    assert list(report.returns) == paid
    assert report.cut_episodes == 10
    assert report.to_json()["cut_episodes"] == 10


def test_the_limit_applies_where_no_time_limit_is_known():
    limited = GymnasiumSource(lambda: TimeLimit(Sometimes(), 5)).spec()
    assert (limited.has_time_limit, episode_limit(limited, None), episode_limit(limited, 3)) == (True, None, 3)
    free = GymnasiumSource(Sometimes).spec()
    assert (free.has_time_limit, episode_limit(free, None), episode_limit(free, 3)) == (False, 27_000, 3)
    assert "after 27,000 env steps are cut (--x)" in describe_limit(free, None, "--x")
    assert not describe_limit(limited, None, "--x")
    assert not describe_limit(free, 3, "--x")


def test_named_seeds_are_played_equally_often():
    options = EpisodeOptions(seeds=(5, 7, 11))
    evaluate(parity_agent(), {}, Countdown, episodes=6, max_rows=4, options=options)
    first = [env.seeds[0] for env in Countdown.made[2:]]
    assert first == [5, 7, 11, 5]
    assert [env.seeds[1] for env in Countdown.made[2:4]] == [7, 11]
    with pytest.raises(UserError, match="expected a multiple of 3 episodes, got 7; use 6 or 9"):
        evaluate(parity_agent(), {}, Countdown, episodes=7, options=options)


def test_named_seeds_are_levels_of_environments_in_jax():
    source = make_env(EnvConfig("CartPole-v1", suite="jax"))
    spec, options = source.spec(), EpisodeOptions(seeds=(3, 8))
    agent = make_ppo(PPOConfig(), spec, NetworkConfig(hidden_sizes=(4,)))
    params = agent.init(jax.random.key(0)).params
    report = evaluate(agent, params, source, episodes=4, max_rows=2, options=options)
    assert report.returns[:2] == report.returns[2:]
    swapped = EpisodeOptions(seeds=(8, 3))
    assert evaluate(agent, params, source, episodes=2, max_rows=1, options=swapped).returns == report.returns[1::-1]
    assert report.returns[0] != report.returns[1]


def test_evaluation_meets_none_of_trainings_episodes():
    evaluate(parity_agent(), {}, Countdown, episodes=20, seed=0, max_rows=4)
    training = {episode_seed(0, row, episode) for row in range(4) for episode in range(100)}
    assert not training & {seed for row in Countdown.made[2:] for seed in row.seeds}


def test_the_seed_decides_environments_and_sampled_actions():
    def play(**changes):
        return evaluate(parity_agent(), {}, Countdown, **{"episodes": 6, "seed": 3, "mode": Mode.SAMPLE, **changes})

    sampled = play()
    assert play() == sampled
    assert play(seed=4).lengths != sampled.lengths
    greedy = play(mode=Mode.GREEDY)
    assert greedy.lengths == sampled.lengths
    assert greedy.returns != sampled.returns
    assert (greedy.greedy, sampled.greedy) == (True, False)


@pytest.mark.parametrize("max_rows", [1, 3])
def test_returns_are_those_of_a_plain_loop_over_episodes(max_rows):
    source = EnvConfig("CartPole-v1").source()
    agent = make_ppo(PPOConfig(), source.spec(), NetworkConfig(hidden_sizes=(8,)))
    params = agent.init(jax.random.key(2)).params
    report = evaluate(agent, params, source, episodes=5, seed=1, max_rows=max_rows)
    run_seed = int(np.random.SeedSequence((1, 0xE7A1)).generate_state(1)[0])
    env = gymnasium.make("CartPole-v1")
    keys = jax.random.split(jax.random.key(0), 1)
    act = jax.jit(
        lambda observation: agent.act(params, observation[None], (), jnp.zeros(1, bool), keys, Mode.GREEDY)[0]
    )
    for episode, expected in enumerate(report.returns):
        observation, _ = env.reset(seed=episode_seed(run_seed, episode % max_rows, episode // max_rows))
        total, ended = 0.0, False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(int(act(observation)[0]))
            total, ended = total + reward, terminated or truncated
        assert expected == total
    env.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"episodes": 0}, "episodes must be at least 1: got 0"),
        ({"max_rows": 0}, "max_rows must be at least 1: got 0"),
        ({"seed": -1}, "seed must be at least 0: got -1"),
    ],
)
def test_evaluate_validates_numbers_before_making_envs(change, message):
    with pytest.raises(UserError, match=message):
        evaluate(parity_agent(), {}, Countdown, **change)
    assert Countdown.made == []


def test_environments_are_closed_after_an_error():
    def fails(params, observation, agent_state, is_first, keys, mode):
        raise RuntimeError("act")

    with pytest.raises(RuntimeError, match="act"):
        evaluate(parity_agent()._replace(act=fails), {}, Countdown, episodes=2)
    assert len(Countdown.made) == 2 + 2  # for its kind and its spec, and those that play
    assert all(env.closed for env in Countdown.made)


def test_a_report_sums_up_its_episodes():
    report = EvaluationReport("e", (1.0, 2.0, 6.0), (10, 20, 60), seed=4, greedy=True)
    assert report.to_json() == {
        "env_id": "e",
        "mean_return": 3.0,
        "std_return": pytest.approx((14 / 3) ** 0.5),
        "min_return": 1.0,
        "max_return": 6.0,
        "episodes": 3,
        "env_steps": 90,
        "mean_length": 30.0,
        "seed": 4,
        "greedy": True,
    }


class OftenWithoutA(Alike):
    """Agent "a" misses every second episode, which then ends with "b"."""

    def reset(self, seed=None, options=None):
        observations, infos = super().reset(seed, options)
        self.agents = ["a", "b"] if self.episode % 2 == 0 else ["b"]
        return {name: observations[name] for name in self.agents}, {name: infos[name] for name in self.agents}


def test_returns_belong_to_episodes_that_agents_may_miss():
    report = evaluate(parity_agent(), {}, ParallelSource(OftenWithoutA), episodes=4, max_rows=1)
    nan = float("nan")
    expected = {"a": (15.0, nan, 15.0, nan), "b": (23.0,) * 4, "c": (49.0, nan, 49.0, nan)}
    assert set(report.returns_by_agent) == set(expected)
    for name, returns in expected.items():
        np.testing.assert_array_equal(report.returns_by_agent[name], returns)
    assert report.returns == (29.0, 23.0, 29.0, 23.0)
    assert report.lengths == (5, 2, 5, 2)


def test_returns_of_some_agents_leave_out_those_that_are_absent():
    nan = float("nan")
    by_agent = {"hunter_0": (1.0, 2.0, nan), "hunter_1": (3.0, nan, nan), "prey_0": (-9.0, -9.0, -9.0)}
    report = EvaluationReport("tag", (0.0, 0.0, 0.0), (5, 5, 5), 0, greedy=True, returns_by_agent=by_agent)
    assert report.of_agents("hunter_*").returns == (2.0, 2.0, 0.0)
    assert report.of_agents("hunter_1").mean_return == 1.0
    assert report.of_agents("*") is report
    assert report.of_agents("referee").returns == (0.0, 0.0, 0.0)  # never present
    assert report.agent_returns == {"hunter_0": 1.5, "hunter_1": 3.0, "prey_0": -9.0}


@pytest.mark.parametrize("place", ["replicated", "host"])
def test_evaluate_acts_on_one_device_without_transfers(place, monkeypatch):
    params = np.ones(3, np.float32)
    if place == "replicated":
        params = jax.device_put(params, LearnerMesh(jax.local_devices()[1:3]).replicated)
    seen, make = [], jaxsrl.evaluation.evaluate.make_act

    def noted(agent, mode):
        act = make(agent, mode)

        def act_and_note(params, *rest):
            seen.append(params)
            return act(params, *rest)

        return act_and_note

    monkeypatch.setattr(jaxsrl.evaluation.evaluate, "make_act", noted)
    report = evaluate(parity_agent(), params, Countdown, episodes=5)
    assert len(report.returns) == 5
    assert {id(each) for each in seen} == {id(seen[0])}
    assert isinstance(seen[0], jax.Array)
    assert seen[0].devices() == {jax.local_devices()[1 if place == "replicated" else 0]}
