"""Crafter. Source: Hafner 2021 (arXiv:2109.06780): survival on a two-dimensional map, with 22 achievements."""

import dataclasses
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.suites.optional_imports import validate_installed
from envpool_bridge.envs.suites.options import options_of, validate_at_least
from envpool_bridge.errors import UserError

_REWARDS = {"CrafterReward-v1": True, "CrafterNoReward-v1": False}
_SEEDS = 2**31 - 1
_VIDEO_SIZE = 576  # pixels of each side, a multiple of the 9 cells


@dataclasses.dataclass(frozen=True)
class CrafterOptions:
    """Options of a task.

    Attributes:
        screen_size: pixels of each side.
        max_steps: env steps after which an episode is truncated.
    """

    screen_size: int = 64
    max_steps: int = 10_000

    def __post_init__(self) -> None:
        validate_at_least(9, screen_size=self.screen_size)
        validate_at_least(1, max_steps=self.max_steps)


class CrafterEnv(gymnasium.Env):
    """Crafter behind Gymnasium's interface: an episode follows from its seed, and only a death terminates it.

    Infos have the number of unlocked "achievements", and 1.0 or 0.0 by the name of each.

    Args:
        rewards: whether achievements and health are rewarded.
        options: Options of the task.
        render_mode: "rgb_array" or None.
    """

    def __init__(self, rewards: bool, options: CrafterOptions, render_mode: str | None = None) -> None:
        from crafter.env import Env as Crafter  # pyright: ignore[reportMissingImports]  optional

        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
        self.render_mode = render_mode
        size = (options.screen_size, options.screen_size)
        self._env: Any = Crafter(size=size, reward=rewards, length=options.max_steps, seed=0)
        self.observation_space = spaces.Box(0, 255, (*size, 3), np.uint8)
        self.action_space = spaces.Discrete(len(self._env.action_names))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        # The map and all that happens follow from this number and the index of the episode.
        self._env._seed, self._env._episode = int(self.np_random.integers(_SEEDS)), 0
        return self._env.reset(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, done, info = self._env.step(int(action))
        unlocked = {name: float(count > 0) for name, count in info["achievements"].items()}
        dead = info["discount"] == 0.0
        infos = {"achievements": sum(unlocked.values()), **unlocked}
        return observation, float(reward), dead, bool(done) and not dead, infos

    def render(self) -> Any:
        random = self._env._world.random
        state = random.get_state()  # the grain of nights is drawn from the map's generator
        frame = self._env.render((_VIDEO_SIZE, _VIDEO_SIZE))
        random.set_state(state)
        return frame


def crafter_source(env_id: str, kwargs: dict[str, Any], strict: bool) -> GymnasiumSource:
    """Returns the source of a task; agents see [64, 64, 3] uint8.

    Raises:
        UserError: If the task or an option is unknown, or the package is missing.
    """
    validate_installed("crafter", "crafter")
    if env_id not in _REWARDS:
        raise UserError(f"unknown id {env_id!r} of suite 'crafter': expected one of {', '.join(_REWARDS)}")
    options = options_of(CrafterOptions, "crafter", env_id, kwargs)
    return GymnasiumSource(partial(CrafterEnv, _REWARDS[env_id], options), env_id, strict=strict)
