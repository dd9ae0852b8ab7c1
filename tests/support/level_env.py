"""Tiny environment whose observations show the level of the episode."""

import os

import gymnasium
import numpy as np

HARD = 2


class LevelEnv(gymnasium.Env):
    """Episodes of 3 + level % 3 steps; observations are (level, steps).

    Level `HARD` rewards one action and punishes the other, others have no rewards. The third action 1 of an episode "raises" or
    "dies" if `failure` says so.
    """

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(-1.0, 1e3, (2,), np.float32)

    def __init__(self, failure=""):
        self.failure = failure

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.level, self.steps, self.ones = seed % 1000, 0, 0
        return self._observation(), {}

    def step(self, action):
        self.steps, self.ones = self.steps + 1, self.ones + int(action)
        if self.ones == 3 and self.failure == "raises":
            raise ValueError("three steps of action 1")
        if self.ones == 3 and self.failure == "dies":
            os._exit(1)
        reward = 10.0 * (1 - 2 * int(action)) if self.level == HARD else 0.0
        return self._observation(), reward, self.steps >= 3 + self.level % 3, False, {}

    def _observation(self):
        return np.array([self.level, self.steps], np.float32)
