"""A tiny environment that shows the stage and the seed of its episodes."""

import gymnasium
import numpy as np


class StagedEnv(gymnasium.Env):
    """Episodes of `length` steps; observations are (stage, step, a draw of the episode's seed); reward 1 a step.

    The draw also depends on the actions, so that a wrong replay shows.
    """

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(-1.0, 1e6, (3,), np.float32)

    def __init__(self, length=5, reward=1.0):
        self.length, self.reward = length, reward

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.stage, self.steps = (options or {}).get("stage", -1), 0
        self.draw = float(self.np_random.integers(1000))
        return self._observation(), {}

    def step(self, action):
        self.steps += 1
        self.draw = (2.0 * self.draw + float(action)) % 1000.0
        return self._observation(), self.reward, self.steps >= self.length, False, {}

    def _observation(self):
        return np.array([self.stage, self.steps, self.draw], np.float32)


class WideStagedEnv(StagedEnv):
    """The same with observations of another shape."""

    observation_space = gymnasium.spaces.Box(-1.0, 1e6, (4,), np.float32)
