"""Vector environment of any number of rows that sleep together in one call, at no cost per row."""

import time
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from envpool_bridge.envs.vector_env import VectorSource

Size = Literal["cartpole", "atari"]
_EPISODE_STEPS = 1000
_SPACES = {"cartpole": spaces.Box(-1.0, 1.0, (4,), np.float32), "atari": spaces.Box(0, 255, (84, 84), np.uint8)}
_FRAMES = {"cartpole": 1, "atari": 4}


class SleepTogether(VectorEnv):
    """Vector environment whose rows sleep `milliseconds` per step, together.

    Observations are constant, of the size of CartPole's or of an Atari frame. The reward is 1. Every episode is truncated after
    1,000 steps.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # pyright: ignore

    def __init__(self, size: Size, milliseconds: float, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = _SPACES[size], spaces.Discrete(2)
        self._seconds, self._steps = milliseconds / 1000, 0
        self._observation = np.zeros((num_envs, *(_SPACES[size].shape or ())), _SPACES[size].dtype)
        self._reward, self._no = np.ones(num_envs, np.float32), np.zeros(num_envs, bool)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._steps = 0
        return self._observation, {}

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        time.sleep(self._seconds)
        self._steps += 1
        truncated = np.full(self.num_envs, self._steps % _EPISODE_STEPS == 0)
        return self._observation, self._reward, self._no, truncated, {}

    def close_extras(self, **kwargs: Any) -> None:
        pass


def sleeping_source(size: Size, milliseconds: float) -> VectorSource:
    """Returns a source of `SleepTogether`."""
    return VectorSource(partial(SleepTogether, size, milliseconds), f"Sleep-{size}", frame_stack=_FRAMES[size])
