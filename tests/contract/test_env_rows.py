"""What every source of environment rows must do."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.probes.single_agent import PROBES, ConstantReward
from envpool_bridge.envs.protocol import EpisodeReset, FirstRows, GymnasiumReset, StepRows
from envpool_bridge.envs.seeding import EpisodeSeeds, episode_seed
from envpool_bridge.envs.vector_env import VectorSource
from envpool_bridge.errors import UserError, WorkerError
from envpool_bridge.spec.specs import DiscreteSpec, zeros_of
from envpool_bridge.spec.tree import items, leaves, map_leaves, shown_path, take


class Noisy(gymnasium.Env):
    """Everything random: observations, rewards, ends."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.normal(size=2), {}

    def step(self, action):
        observation = self.np_random.normal(size=2) + action
        return observation, float(self.np_random.normal()), bool(self.np_random.random() < 0.1), False, {}


class Structured(Noisy):
    """A tree of every kind of leaf, observed and acted."""

    observation_space = spaces.Dict(
        image=spaces.Box(0, 255, (3, 2), np.uint8),
        place=spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 4], start=[0, -2]))),
        speed=spaces.Box(-1.0, 1.0, (), np.float64),
    )
    action_space = spaces.Dict(
        gear=spaces.Discrete(3, start=-1), steer=spaces.Tuple((spaces.Box(-1.0, 1.0, (2,), np.float64),))
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.drawn(0.0), {}

    def step(self, action):
        assert self.action_space.contains(action)
        speed = float(action["steer"][0].mean() * action["gear"])
        return self.drawn(speed), speed, bool(self.np_random.random() < 0.1), False, {}

    def drawn(self, speed):
        return {
            "image": self.np_random.integers(0, 256, (3, 2), np.uint8),
            "place": (self.np_random.integers(1, 4), self.np_random.integers([0, -2], [2, 2])),
            "speed": np.asarray(speed),
        }


SOURCES = {
    "CartPole": EnvConfig("CartPole-v1").source(),
    "Pendulum": EnvConfig("Pendulum-v1", kwargs='{"max_episode_steps": 15}').source(),
    "probe": EnvConfig("MatchObservation", suite="probe").source(),
    "FrozenLake": EnvConfig("FrozenLake-v1").source(),
    "noise": GymnasiumSource(Noisy),
    "vector CartPole": EnvConfig("CartPole-v1", suite="gymnasium_vector").source(),
    "vector of wrapped": VectorSource(lambda n: SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * n)),
    "structured": GymnasiumSource(Structured),
    "vector of structured": VectorSource(lambda n: SyncVectorEnv([Structured] * n)),
}
NATIVE = {
    "envpool CartPole": ("envpool", EnvConfig("CartPole-v1", suite="envpool", kwargs='{"num_threads": 1}')),
    "envpool MiniGrid": (
        "envpool",
        EnvConfig("MiniGrid-Empty-5x5-v0", suite="envpool", kwargs='{"num_threads": 1, "max_episode_steps": 12}'),
    ),
    "atari_vector Pong": (
        "ale_py",
        EnvConfig("ALE/Pong-v5", suite="atari_vector", kwargs='{"num_threads": 1, "max_frames": 120}'),
    ),
}


def source_of(name):
    if name not in NATIVE:
        return SOURCES[name]
    package, config = NATIVE[name]
    pytest.importorskip(package)
    return config.source()


def step_rows(spec, num_rows) -> StepRows:
    flags = [np.ones(num_rows, bool) for _ in range(4)]  # stale: `prepare` must overwrite it
    observation = zeros_of(spec.observation, (num_rows,))
    for leaf in leaves(observation):
        leaf[...] = 77
    return StepRows(observation, flags[0], np.full(num_rows, 77, np.float32), flags[1], flags[2], flags[3])


def actions(spec, rng, num_rows):
    return map_leaves(partial(leaf_actions, rng, num_rows), spec.action)


def leaf_actions(rng, num_rows, leaf):
    if isinstance(leaf, DiscreteSpec):
        return rng.integers(0, leaf.num_values, num_rows).astype(np.int32)
    return rng.uniform(-3, 3, (num_rows, *leaf.shape)).astype(np.float32)


def record(out: StepRows):
    names = ("is_first", "reward", "terminated", "truncated", "valid")
    observation = {shown_path("observation", path): leaf.copy() for path, leaf in items(out.observation)}
    return {**observation, **{name: getattr(out, name).copy() for name in names}}


def play(rows, spec, num_steps, rng, out):
    steps = []
    for _ in range(num_steps):
        action = actions(spec, rng, rows.num_rows)
        out.prepare()
        rows.step(action, out)
        rows.verify(take(out.observation, None), out.reward[None])
        steps.append((action, record(out)))
    return steps


@pytest.mark.parametrize("name", [*SOURCES, *NATIVE])
def test_episode_end_is_followed_by_a_reset_step(name):
    source = source_of(name)
    spec = source.spec()
    rows = source.make_rows(range(4), 3, False)
    out = step_rows(spec, 4)
    first = FirstRows(out.observation, out.is_first)
    rows.reset(EpisodeReset((0,) * 4, (None,) * 4), first)
    assert out.is_first.all()
    ended, resets = np.zeros(4, bool), 0
    for _, step in play(rows, spec, 120, np.random.default_rng(0), out):
        np.testing.assert_array_equal(step["valid"], ~ended)
        np.testing.assert_array_equal(step["is_first"], ended)
        assert not step["reward"][ended].any()
        assert not (step["terminated"] | step["truncated"])[ended].any()
        resets += ended.sum()
        ended = step["terminated"] | step["truncated"]
    assert resets > 3
    rows.close()
    rows.close()


@pytest.mark.parametrize("name", [*SOURCES, *NATIVE])
def test_the_same_run_seed_gives_the_same_steps(name):
    source = source_of(name)
    spec, played = source.spec(), []
    for _ in range(2):
        rows, out = source.make_rows(range(3), 11, False), step_rows(source.spec(), 3)
        rows.reset(EpisodeReset((0,) * 3, (None,) * 3), FirstRows(out.observation, out.is_first))
        played.append(play(rows, spec, 20, np.random.default_rng(1), out))
        rows.close()
    for (_, one), (_, other) in zip(*played, strict=True):
        for field, values in one.items():
            np.testing.assert_array_equal(values, other[field])


@pytest.mark.parametrize("name", ["CartPole", "Pendulum", "noise", "FrozenLake"])
@pytest.mark.parametrize("cut", [1, 17, 40])
def test_replayed_rows_continue_as_if_never_interrupted(name, cut):
    source = SOURCES[name]
    spec = source.spec()
    rows, out = source.make_rows(range(3), 5, False), step_rows(spec, 3)
    rows.reset(EpisodeReset((0,) * 3, (None,) * 3), FirstRows(out.observation, out.is_first))
    steps = play(rows, spec, 60, np.random.default_rng(2), out)
    rows.close()
    episodes, since = [0] * 3, [[] for _ in range(3)]
    for action, step in steps[:cut]:
        for row in range(3):
            if step["valid"][row]:
                since[row].append(action[row])
            else:
                episodes[row], since[row] = episodes[row] + 1, []
    again = source.make_rows(range(3), 5, False)
    replay = tuple(np.array(done) if done else None for done in since)
    again.reset(EpisodeReset(tuple(episodes), replay), FirstRows(out.observation, out.is_first))
    np.testing.assert_array_equal(out.observation, steps[cut - 1][1]["observation"])
    for action, expected in steps[cut:]:
        out.prepare()
        again.step(action, out)
        for field, values in record(out).items():
            np.testing.assert_array_equal(values, expected[field])
    again.close()


def test_rows_clip_actions_and_reject_nan():
    rows, spec = SOURCES["Pendulum"].make_rows(range(1), 0, False), SOURCES["Pendulum"].spec()
    out = step_rows(spec, 1)
    results = []
    for action in (50.0, 2.0):  # the bound is 2
        rows.reset(GymnasiumReset((1,)), FirstRows(out.observation, out.is_first))
        rows.step(np.full((1, 1), action, np.float32), out)
        results.append(out.observation.copy())
    np.testing.assert_array_equal(*results)
    with pytest.raises(WorkerError, match="row 0, step 3: the policy's action is not finite"):
        rows.step(np.full((1, 1), np.nan, np.float32), out)
    rows.close()


def test_vector_env_with_other_autoreset_is_rejected():
    def same_step(num_envs):
        return SyncVectorEnv([ConstantReward] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)

    with pytest.raises(UserError, match="autoreset_mode NEXT_STEP"):
        VectorSource(same_step).spec()


@pytest.mark.parametrize("name", ["CartPole", "Pendulum", "structured"])
def test_vector_env_equals_single_envs(name):
    one_by_one = SOURCES[name]
    vector = VectorSource(lambda n: SyncVectorEnv([one_by_one.make_env] * n), one_by_one.spec().env_id)
    assert vector.spec() == one_by_one.spec()
    played = []
    for source in (one_by_one, vector):
        spec = source.spec()
        rows, out = source.make_rows(range(3), 7, False), step_rows(spec, 3)
        rows.reset(EpisodeReset((0, 1, 5), (None,) * 3), FirstRows(out.observation, out.is_first))
        begun = record(out)
        steps = play(rows, spec, 40, np.random.default_rng(4), out)
        played.append([begun, *[step for _, step in steps]])
        rows.close()
    # Later episodes have seeds of their own one by one; a vector goes on with the generators it has.
    same = ~np.cumsum([step["is_first"] for step in played[0][1:]], axis=0).astype(bool)
    assert same.sum() > 10
    for t, (one, other) in enumerate(zip(*played, strict=True)):
        good = np.ones(3, bool) if t == 0 else same[t - 1]
        for field in one if t else [field for field in one if field.startswith("observation")]:
            np.testing.assert_array_equal(one[field][good], other[field][good])


def test_episode_seeds_differ_by_run_row_and_episode():
    seeds = {episode_seed(run, row, episode) for run in range(4) for row in range(8) for episode in range(130)}
    assert len(seeds) == 4 * 8 * 130
    assert 2**31 * 0.99 < max(seeds) < 2**31  # OpenSpiel's and others' seeds are C ints
    one = EpisodeSeeds(1, 2)
    assert [one.seed(e) for e in (0, 70, 3)] == [episode_seed(1, 2, e) for e in (0, 70, 3)]


@pytest.mark.parametrize("name", sorted(set(PROBES) - {"EndsByClock"}))
def test_probes_pass_gymnasiums_own_checker(name):
    # EndsByClock truncates at its first step, which the checker takes for a mistake; here it is the point.
    from gymnasium.utils.env_checker import check_env

    check_env(PROBES[name](), skip_render_check=True)
