"""A random walk that is stepped plainly or in halves, rows of it, and a clock for waiting threads."""

from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.protocol import StepRows

FIRST_ID = 20


class Walk(gymnasium.Env):
    """A random walk with its own generator and random length; records its calls."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(3)
    made = 0
    calls: ClassVar[list[tuple[int, str]]] = []  # of all walks

    def __init__(self):
        self.number = Walk.made
        Walk.made += 1

    def reset(self, *, seed=None, options=None):
        self.calls.append((self.number, "reset"))
        super().reset(seed=seed)
        self.position = self.np_random.normal()
        return np.array([self.position]), {}

    def step(self, action):
        self.calls.append((self.number, "step"))
        self.position += float(action) + self.np_random.normal()
        ends = bool(self.np_random.random() < 0.2)
        return np.array([self.position]), self.position, ends, False, {"row": self.number}


class WaitingWalk(Walk):
    """The same walk in two halves, which raises if they are called in any other order."""

    raises: ClassVar[dict[tuple[int, str], BaseException]] = {}  # by (row, half)
    under_way = None

    def step(self, action):
        assert self.under_way is None
        return super().step(action)

    def step_async(self, action):
        assert self.under_way is None
        self._note("begin")
        self.under_way = action

    def step_wait(self):
        action, self.under_way = self.under_way, None
        self._note("wait")
        assert action is not None
        return super().step(action)

    def reset(self, *, seed=None, options=None):
        assert self.under_way is None
        self._note("before reset")
        return super().reset(seed=seed)

    def close(self):
        self.calls.append((self.number, "close" if self.under_way is None else "close in a step"))

    def _note(self, half):
        self.calls.append((self.number, half))
        if (self.number, half) in self.raises:
            raise self.raises[self.number, half]


def rows_of(make_env, num_rows, run_seed=7, **settings):
    Walk.made = 0
    rows = GymnasiumSource(make_env, "Walk", **settings).make_rows(range(FIRST_ID, FIRST_ID + num_rows), run_seed, True)
    observation, reward = np.zeros((num_rows, 1), np.float32), np.zeros(num_rows, np.float32)
    is_first, terminated, truncated, valid = np.ones((4, num_rows), bool)
    return rows, StepRows(observation, is_first, reward, terminated, truncated, valid)


def limited(kind, steps):
    return lambda: TimeLimit(OrderEnforcing(kind()), steps)


class Clock:
    """A clock that advances only when a thread waits for a later time."""

    def __init__(self):
        self.now, self.waits = 0.0, 0

    def wait_until(self, time):
        if time > self.now:
            self.now, self.waits = time, self.waits + 1
