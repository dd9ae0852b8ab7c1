"""Recording: its length, its episodes and its random actions."""

import os
from functools import partial
from typing import ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Mode
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.io.spaces import spec_of_spaces
from jaxsrl.datasets.dataset import find_episodes, open_dataset
from jaxsrl.datasets.writer import DatasetWriter
from jaxsrl.envs.registry import make_env
from jaxsrl.evaluation.evaluate import evaluate
from jaxsrl.evaluation.record import RecordConfig, record, with_random_actions


class ShortOrLong(gymnasium.Env):
    """Half of the episodes have 2 steps, the others 50."""

    observation_space = gymnasium.spaces.Box(0, 1000, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 2 if self.np_random.random() < 0.5 else 50
        return np.array([self.left], np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.array([self.left], np.float32), 1.0, self.left == 0, False, {}


def record_some(out):
    source = make_env(ShortOrLong)
    agent = make_ppo(PPOConfig(), source.spec(), NetworkConfig(hidden_sizes=(4,)))
    params = agent.init(jax.random.key(0)).params
    return record(agent, params, source, out, RecordConfig(env_steps=10, epsilon=1.0, max_rows=8))


def test_a_number_of_env_steps_does_not_prefer_short_ones(tmp_path):
    dataset = record_some(tmp_path / "set")
    lengths = find_episodes(dataset.steps).lengths
    # Ten steps are played before a long episode ends. Every row ends the episode that it plays then.
    assert set(lengths) == {2, 50}
    assert 8 <= len(lengths) < 24
    assert dataset.num_valid_steps == lengths.sum() > 10


class ShortOrEndless(ShortOrLong):
    """Shows 1,000 times a number that the seed draws, minus the steps done; half of the episodes end after 2."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.begun, self.played = 1000 * int(self.np_random.integers(1000)), 0
        return np.array([self.begun], np.float32), {}

    def step(self, action):
        self.played += 1
        return np.array([self.begun - self.played], np.float32), 1.0, self.played == self.left == 2, False, {}


@pytest.mark.parametrize("length", [{"episodes": 22}, {"env_steps": 90}])
def test_endless_episodes_are_truncated_at_the_limit(tmp_path, length):
    source = make_env(ShortOrEndless)
    agent = make_ppo(PPOConfig(), source.spec(), NetworkConfig(hidden_sizes=(4,)))
    params = agent.init(jax.random.key(0)).params
    config = RecordConfig(**length, max_rows=4, max_episode_steps=7)
    dataset = record(agent, params, source, tmp_path / "set", config)
    assert dataset.manifest.origin["max_episode_steps"] == 7
    steps, episodes = dataset.steps, find_episodes(dataset.steps)
    assert set(episodes.lengths) == {2, 7}
    firsts = []
    for begin, end in zip(episodes.begin, episodes.end, strict=True):
        shown = steps.observation[begin : end + 1, 0, 0]
        firsts.append(shown[0])
        np.testing.assert_array_equal(shown, shown[0] - np.arange(end - begin + 1))
        ends = steps.terminated[end - 1, 0], steps.truncated[end - 1, 0]
        assert ends == (end - begin == 2, end - begin == 7)
    assert len(set(firsts)) == len(firsts), "an episode is there twice"
    if "episodes" in length:
        assert len(firsts) == 22
    else:
        assert 90 <= sum(episodes.lengths) < 90 + 4 * 7


def test_an_interrupted_recording_has_another_name(tmp_path, monkeypatch):
    append = DatasetWriter.append

    def append_and_stop(writer, steps):
        append(writer, steps)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(DatasetWriter, "append", append_and_stop)
        with pytest.raises(KeyboardInterrupt):
            record_some(tmp_path / "set")
    assert not (tmp_path / "set").exists()
    assert len(find_episodes(open_dataset(tmp_path / ".set.partial" / "set").steps).returns) == 1
    assert len(find_episodes(record_some(tmp_path / "set").steps).returns) >= 8
    assert os.listdir(tmp_path) == ["set"]


class Starts(ShortOrLong):
    """Episodes of one step, whose first observations are kept in `seen`."""

    seen: ClassVar[list[float]] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 1
        self.seen.append(self.np_random.random())
        return np.array([self.seen[-1]], np.float32), {}


def test_recordings_have_other_episodes_than_evaluations(tmp_path, monkeypatch):
    def starts(play):
        with monkeypatch.context() as patched:
            patched.setattr(Starts, "seen", [])
            play()
            return Starts.seen

    source = make_env(Starts)
    agent = make_ppo(PPOConfig(), source.spec(), NetworkConfig(hidden_sizes=(4,)))
    params = agent.init(jax.random.key(0)).params
    config = RecordConfig(episodes=20, max_rows=4)
    first, again = (starts(partial(record, agent, params, source, tmp_path / name, config)) for name in ("a", "b"))
    evaluated = starts(partial(evaluate, agent, params, source, episodes=20, max_rows=4))
    assert first == again
    assert min(len(set(first)), len(set(evaluated))) >= 20
    assert not set(first) & set(evaluated)


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ([-1.0, -np.inf], [1.0, np.inf]),
        ([-1.0, 0.0], [1.0, np.inf]),
        ([0.0, 0.0], [np.inf, np.inf]),
        ([-np.inf, -3.0], [2.0, -1.0]),
        ([-np.inf, -np.inf], [np.inf, np.inf]),
    ],
)
def test_random_actions_are_those_of_gymnasiums_boxes(low, high):
    box = gymnasium.spaces.Box(np.array(low, np.float32), np.array(high, np.float32), seed=0)
    spec = spec_of_spaces(ShortOrLong.observation_space, box, "Box-v0", 1)

    def no_action(params, observation, state, is_first, keys, mode):
        return jnp.zeros((len(keys), 2)), {}, state

    keys = jax.random.split(jax.random.key(0), 4000)
    act = with_random_actions(no_action, spec, 1.0)
    actions = np.asarray(act({}, np.zeros((4000, 1)), (), None, keys, Mode.GREEDY)[0])
    assert all(box.contains(action) for action in actions)
    theirs = np.array([box.sample() for _ in range(4000)])
    for quantile in (0.1, 0.5, 0.9):
        np.testing.assert_allclose(*(np.quantile(each, quantile, axis=0) for each in (actions, theirs)), atol=0.15)
