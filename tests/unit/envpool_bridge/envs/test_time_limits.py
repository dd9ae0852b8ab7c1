"""Time limits kept for all rows at once, against Gymnasium's own wrapper around each environment."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.protocol import EpisodeReset, FirstRows, GymnasiumReset, StepRows

NUM_ROWS = 3


class EndsAsItWasTold(gymnasium.Env):
    """Ends with the probability its generator was seeded for; observes how many steps its episode has."""

    observation_space = spaces.Box(0.0, 1e6, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), 1.0, bool(self.np_random.random() < 0.1), False, {}


class Hidden(gymnasium.Wrapper):
    """A wrapper of a user's own, which sees every step."""

    def __init__(self, env):
        super().__init__(env)
        self.seen = 0

    def step(self, action):
        self.seen += 1
        return super().step(action)


class OwnLimit(TimeLimit):
    """A user's own kind of limit, which ends episodes two steps early."""

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated or self._elapsed_steps >= self._max_episode_steps - 2, info


def limited():
    return TimeLimit(OrderEnforcing(EndsAsItWasTold()), 7)


def limited_twice():
    return TimeLimit(OrderEnforcing(TimeLimit(EndsAsItWasTold(), 5)), 9)


def limited_more_outside():
    return TimeLimit(TimeLimit(EndsAsItWasTold(), 9), 5)


def limit_of_its_own():
    return OwnLimit(EndsAsItWasTold(), 7)


def limit_below_a_wrapper():
    return Hidden(TimeLimit(EndsAsItWasTold(), 7))


def limit_around_a_wrapper():
    return TimeLimit(Hidden(EndsAsItWasTold()), 7)


def limit_of_one():
    return TimeLimit(EndsAsItWasTold(), 1)


def unlimited():
    return OrderEnforcing(EndsAsItWasTold())


ALL = [
    limited,
    limited_twice,
    limited_more_outside,
    limit_of_its_own,
    limit_below_a_wrapper,
    limit_around_a_wrapper,
    limit_of_one,
    unlimited,
]


def rows_of(make_env, run_seed=None):
    rows = GymnasiumSource(make_env, "limited").make_rows(range(NUM_ROWS), run_seed, False)
    flags = [np.zeros(NUM_ROWS, bool) for _ in range(4)]
    observation = np.zeros((NUM_ROWS, 1), np.float32)
    return rows, StepRows(observation, flags[0], np.zeros(NUM_ROWS, np.float32), *flags[1:])


def first_of(out):
    return FirstRows(out.observation, out.is_first)


def step(rows, out, action=0):
    out.prepare()
    rows.step(np.full(NUM_ROWS, action, np.int32), out)
    return out.observation[:, 0].copy(), out.terminated.copy(), out.truncated.copy(), out.valid.copy()


@pytest.mark.parametrize("make_env", ALL)
def test_episodes_end_where_gymnasiums_wrappers_end_them(make_env):
    rows, out = rows_of(make_env)
    rows.reset(GymnasiumReset((3, 4, 5)), first_of(out))
    envs = [make_env() for _ in range(NUM_ROWS)]
    for env, seed in zip(envs, (3, 4, 5), strict=True):
        env.reset(seed=seed)
    ended, kinds = [False] * NUM_ROWS, set()
    for number in range(120):
        observation, terminated, truncated, valid = step(rows, out)
        for row, env in enumerate(envs):
            if ended[row]:
                env.reset()
                expected = (0.0, False, False, False)
                ended[row] = False
            else:
                seen, _, ends, cut, _ = env.step(0)
                expected = (seen[0], ends, cut, True)
                ended[row] = ends or cut
                kinds.add((ends, cut))
            got = (observation[row], terminated[row], truncated[row], valid[row])
            assert got == expected, f"row {row}, step {number}"
    assert {cut for _, cut in kinds} == {False, make_env is not unlimited} or make_env is limit_of_one
    rows.close()


def test_time_limit_keeps_termination_at_the_last_step():
    rows, out = rows_of(limit_of_one)
    rows.reset(GymnasiumReset((0, 1, 2)), first_of(out))
    both = sum(
        int((terminated & truncated).sum()) for _, terminated, truncated, _ in (step(rows, out) for _ in range(80))
    )
    assert both > 0
    rows.close()


class NeverEnds(EndsAsItWasTold):
    """Of which the limit alone remains."""

    def step(self, action):
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, False, truncated, info


@pytest.mark.parametrize("wrapper", [TimeLimit, OwnLimit])
@pytest.mark.parametrize("played", [0, 1, 4, 5, 7])
def test_a_replayed_episode_has_only_the_steps_that_are_left(wrapper, played):
    limit = 7 if wrapper is TimeLimit else 9  # OwnLimit ends two steps early

    def make_env():
        return wrapper(NeverEnds(), limit)

    rows, out = rows_of(make_env, run_seed=8)
    actions = np.zeros(played, np.int32)
    rows.reset(EpisodeReset((0,) * NUM_ROWS, (actions,) * NUM_ROWS), first_of(out))
    assert list(out.observation[:, 0]) == [played] * NUM_ROWS
    steps = [step(rows, out) for _ in range(10)]
    cut = [index for index, (_, _, truncated, _) in enumerate(steps) if truncated.any()]
    reset = [index for index, (*_, valid) in enumerate(steps) if not valid.any()]
    assert reset[0] == 7 - played, "the step after the seventh resets"
    assert cut[:1] == ([6 - played] if played < 7 else [7])
    rows.close()


def test_wrappers_that_are_not_gymnasiums_own_see_every_step():
    made = []

    def make_env():
        made.append(Hidden(EndsAsItWasTold()))
        return TimeLimit(made[-1], 7)

    source = GymnasiumSource(make_env, "limited")
    rows = source.make_rows(range(NUM_ROWS), None, False)
    _, out = rows_of(unlimited)
    rows.reset(GymnasiumReset((3, 4, 5)), first_of(out))
    valid = sum(step(rows, out)[3] for _ in range(10))
    assert [env.seen for env in made] == list(valid)
    rows.close()
